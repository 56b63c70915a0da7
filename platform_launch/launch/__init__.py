"""A node's training among the others': roll call, hand-off, fail together, and start again.

This joins two rooms that do not know each other: ``supervise`` runs the training, ``rendezvous`` lets the
nodes meet, in a process of its own that is spoken to over pipes (``link``).
"""
