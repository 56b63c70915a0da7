"""The nodes of a job meet before the training starts, and stay in touch while it runs.

Node 0 hosts the meeting: torch's TCPStore at INIT_MASTER_PORT, in a process of its own (``meeting``), since
importing torch costs more memory than the supervisor may take. Every node's launcher starts such a process
and talks with it in lines of JSON (``lines``). What is decided there is decided by functions of values:

    fingerprint   what a node brings                 absence   who is missing, and since when
    verdict       whether the nodes may start        pulse     who has gone silent
    cause         which failure came first           restarts  whether starting again is worth it

See docs/decisions/0005-roll-call.md.
"""
