"""A node's agent: what the server wants of its workers, made so; what is, reported.

reconcile.py   wanted and found → next step and report; pure
records.py     what a run leaves on disk, which outlives agent and supervisor; the agent's lock
state.py       the agent's folder: its identity, its credential, its runs
supervisor.py  the process that holds one training, and outlives the agent
worker.py      one worker: takes the steps
main.py        the main thread; heartbeats.py and shipping.py: the threads that talk to the server
"""
