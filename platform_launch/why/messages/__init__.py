"""Explains what one message of a log means."""
