"""Turns a request and facts into choices, and choices into a plan: only functions of values."""
