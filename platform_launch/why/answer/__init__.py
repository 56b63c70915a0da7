"""The answer: what it holds, and how it is said."""
