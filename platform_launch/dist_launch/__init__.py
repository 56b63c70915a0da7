"""dist-launch: nodes that wait, and rank 0 from which commands are run on all of them, again and again.

    wait           one on each node: keys, a private sshd, and what it added taken away at the end
    waiting_node   a process of ``wait`` that takes part in the cluster's rendezvous
    broker         a process of rank 0's ``wait`` that keeps SSH connections; see ``broker_client``
    agent          what the broker starts on a node: runs a job there, ends it, reports on the node

See docs/decisions/0007-dist-launch.md.
"""
