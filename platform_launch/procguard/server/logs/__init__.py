"""Logs of runs on disk: appended as agents send them, kept within limits, read in windows."""
