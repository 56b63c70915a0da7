"""The desired state of every worker, decided from values: no file, socket or database is opened here.

group.py      a group, its run and its history as frozen values; world.py: all groups and workers
freeze.py     settings + workers → the next run, or why it cannot start
phases.py     users' requests, and the next step of a group in each phase; failures.py: who failed first
queue.py      which queued groups start when workers are free
registry.py   the last reports of agents, in memory, and the server's time
"""
