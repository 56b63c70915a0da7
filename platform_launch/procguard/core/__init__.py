"""What is wanted of every worker, decided from values: it opens no file, socket or database.

group.py         a group and its run as frozen values
freeze.py        settings + workers → the next run, or why it cannot start
transitions.py   how a group enters a phase, and what people request: start, stop, restart
phases.py        what becomes of a group in each phase; failures.py: who failed first
registry.py      what agents said last, in memory; snapshot.py: a worker at one moment
joining.py       nodes come and go
ledger.py        what is written down, and the protocol of what writes it
orders.py        a group's phase → one worker's order
queries.py       groups and workers as people see them
control.py       all of it behind one lock
"""
