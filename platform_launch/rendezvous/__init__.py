"""The nodes of a job meet here, stay in touch, exchange values, and agree how it ended. Nowhere else.

Node 0 serves a store (torch's TCPStore) at INIT_MASTER_PORT and leads; every node takes part, node 0's own
launcher too. Importing torch costs more memory than a supervisor may take, so both live in a helper process.

    store            the only module that opens a TCPStore; no call waits for ever
                     torch_free: a client of one, for a node that cannot load torch
    messages         what travels: dataclasses that are checked when they are read
    authentication   the secret that nodes may share, and the seal it puts on every entry
    protocol         what lies in the store under which key
    purpose          which messages travel, and the name of the protocol that follows from them
    coordinator      node 0's side        membership   who holds which rank; spares; who comes back
                     own_entries, open_requests, strangers: what it writes, passes on, turns away
    participant      a node's side        liveness     who has gone silent
                     handshake: what it makes of who answers at node 0
    connecting       the way to node 0    reach        its name, its address, its port

A purpose is built on these: ``run`` (a verdict, and how the training ended), the doctor's measurements, and
dist-launch's cluster that waits. What a purpose gets:

    coordinator.publish(message)                →  participant.state(Kind)
    participant.publish(message)                →  coordinator.values(Kind), participant.value_of(rank, Kind)
    participant.ask(message, to=…, limit_s=…)   →  participant.requests(), .answer(request, message)
    coordinator.step()                          →  who joined, returned, was replaced or turned away
    coordinator.assign(spare, rank)             →  participant.seat

What a run needs besides is decided by functions of values: ``fingerprint``, ``verdict``, ``ranks``,
``first_failure``, ``restarts``, ``ending``. See docs/decisions/0005-roll-call.md and 0012-one-rendezvous.md.
"""
