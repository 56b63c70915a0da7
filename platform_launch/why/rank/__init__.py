"""Ranks everything that could be the root cause, by one table of weights."""
