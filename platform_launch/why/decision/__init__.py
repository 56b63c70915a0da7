"""Decides between the events of all logs which came first and is the cause."""
