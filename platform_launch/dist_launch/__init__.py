"""dist-launch: nodes wait, and rank 0 runs commands on all of them.

    wait           one per node: keys, a private sshd, and the removal of everything it added
    waiting_node   a process of ``wait`` that joins the cluster's rendezvous
    broker         a process of rank 0's ``wait`` that keeps SSH connections; see ``broker_client``
    agent          what the broker starts on a node: runs a job there, stops it, reports on the node

See docs/decisions/0007-dist-launch.md.
"""
