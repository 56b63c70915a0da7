"""dist-launch: nodes that wait, and rank 0 from which commands are run on all of them, again and again.

    wait      one on each node: the meeting, keys, a private sshd, and what it added taken away at the end
    meeting   a process of ``wait`` that stays in touch with the other nodes
    broker    a process of rank 0's ``wait`` that keeps the SSH connections; commands talk to it (``ask``)
    agent     what the broker starts on a node: runs a job there, ends it, says how the node is

See docs/decisions/0007-dist-launch.md.
"""
