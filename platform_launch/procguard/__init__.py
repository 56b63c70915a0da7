"""ProcGuard: a web control plane for groups of workers, with an agent on each node.

Desired state flows one way: people change groups on the server, the server repeats the desired state in the
answer to every heartbeat, and agents apply it and report the actual state. No message has to arrive. See
``docs/decisions/0008-procguard.md``.
"""
