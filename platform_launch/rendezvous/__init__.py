"""How the nodes of a job connect, exchange values and agree on the outcome. There is no second way.

Each node has one connection to node 0, which leads; node 0's own launcher takes part like any other. One
thread of the launcher owns all connections. See docs/decisions/0022-connections.md.

    loop             that thread: an asyncio event loop
    messages         what travels: dataclasses that are checked when they are read
    protocol         the messages of every rendezvous
    purpose          the messages of one purpose, and its name
    lines            how a message becomes a sealed line
    authentication   the secret that nodes may share
    server, client   the two ends of a connection; a client resumes when it breaks
    listening        the ports of node 0
    reach            names, addresses and ports that others can try
    connecting       how a node finds node 0
    coordinator      node 0's side
    membership       who holds which rank; spares; who returns
    open_requests    the questions that the coordinator passes on
    participant      a node's side
    liveness         who has gone silent
    ranks_from       before all this: a rank from a shared folder, if nothing else gives one

A purpose is built on these: ``run`` (a verdict, and how the job ended), the doctor's measurements, and
dist-launch's cluster that waits. What a purpose gets:

    coordinator.publish(message)                →  participant.state(Kind)
    participant.publish(message)                →  coordinator.values(Kind), participant.value_of(rank, Kind)
    participant.query(message, to=…, limit_s=…)   →  participant.requests(), .answer(request, message)
    coordinator.step()                          →  who joined, returned, was replaced or turned away
    coordinator.assign(spare, rank)             →  participant.membership

What a run needs besides is decided by functions of values: ``fingerprint``, ``verdict``, ``ranks``,
``first_failure``, ``restarts``, ``ending``.
"""
