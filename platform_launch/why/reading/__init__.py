"""Reads one log into the events that its processes did not get over."""
