"""What is wanted of every worker, decided from values: it opens no file, socket or database.

group.py         a group and its run as frozen values
freeze.py        settings + workers → the next run, or why it cannot start
transitions.py   how a group enters a phase, and what people request: start, stop, restart
phases.py        what becomes of a group in each phase; failures.py: who failed first
registry.py      what agents reported last, in memory; snapshot.py: a worker at one moment
clock.py         the server's time, and since when groups are in their phase
joining.py       nodes come and go; silence.py: who fell silent or into quarantine, and who is back
ledger.py        what is written down, and the protocol of what writes it
orders.py        what heartbeats are answered with: a group's phase as each worker's order
queries.py       what people ask; views.py: groups, workers and nodes as they are shown
control.py       what people and the control loop change, behind one lock
"""
