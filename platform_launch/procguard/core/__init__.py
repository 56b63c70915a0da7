"""The desired state of every worker, decided from values: no file, socket or database is opened here.

group.py      a group, its run and its history as frozen values
freeze.py     settings + workers → the next run, or why it cannot start
phases.py     users' requests, and the next step of a group in each phase; failures.py: who failed first
queue.py      which queued groups start when workers are free
registry.py   the last reports of agents, in memory, and the server's time
joining.py    nodes join and leave, fall silent or into quarantine, and are back
ledger.py     the stored state, and the protocol of the database
orders.py     the answers to heartbeats: a group's phase as each worker's order
queries.py    read access: groups, workers and nodes as they are shown
control.py    changes by users and by the control loop, behind one lock
"""
