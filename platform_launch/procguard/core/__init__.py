"""The desired state of every worker, decided from values: no file, socket or database is opened here.

group.py         a group, its run and its history as frozen values
freeze.py        settings + workers → the next run, or why it cannot start
transitions.py   how a group enters a phase, and users' requests: start, stop, restart
phases.py        the next step of a group in each phase; failures.py: who failed first
queue.py         which queued groups start when workers are free
registry.py      the last reports of agents, in memory; snapshot.py: a worker at one moment
clock.py         the server's time, and since when groups are in their phase
joining.py       nodes join and leave; silence.py: who fell silent or into quarantine, and who is back
ledger.py        the stored state, and the protocol of the database
orders.py        the answers to heartbeats: a group's phase as each worker's order
queries.py       read access; views.py: groups, workers and nodes as they are shown
control.py       changes by users and by the control loop, behind one lock
"""
