"""The life of one node of a job; ``job`` shows it on one page.

This joins two packages that do not know each other: ``supervise`` runs the processes of a node, and
``rendezvous`` lets the nodes of a job meet, stay connected and agree how the run ended.
"""
