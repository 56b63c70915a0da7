"""Reads one log and returns the events that its processes did not survive."""
