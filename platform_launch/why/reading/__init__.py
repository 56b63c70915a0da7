"""Reads one log: the events in it, in the order of its lines, and which of them its processes got over."""
