"""Turns the bytes of a log into lines, each with its writer and its time."""
