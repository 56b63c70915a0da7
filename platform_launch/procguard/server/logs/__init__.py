"""Logs of runs on disk: appended as agents send them, kept within a limit, read in windows."""
