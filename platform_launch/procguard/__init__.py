"""ProcGuard: a web control plane for groups of workers, with an agent on each node.

One direction of truth: people change groups on the server, the server says in every heartbeat's answer what
is wanted, agents make it so and report what is. Nothing is sent once and hoped for. How it fits together:
``docs/decisions/0008-procguard.md``.
"""
