"""Ranks what could be the root cause, by one table of weights, and makes the verdict of the highest claim."""
