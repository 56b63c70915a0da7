"""A node's agent: it brings the node's workers to their desired state and reports the actual state.

reconcile.py   order and actual state → next step and report; pure
records.py     the records of a run on disk, which outlive agent and supervisor; the agent's lock
state.py       the agent's folder: its identity, its credential, its runs
supervisor.py  the process that supervises one run, and outlives the agent
worker.py      one worker: carries out the steps
output.py      what a run's output shows: steps per second, pauses, slow ranks
main.py        the main thread; heartbeats.py and shipping.py: the threads that talk to the server
"""
