"""What changes and shows the state: users' changes, agents' reports and the control loop.

joining.py   nodes join and leave, fall silent or into quarantine, and are back
orders.py    the answers to heartbeats: a group's phase as each worker's order
queries.py   read access: groups, workers and nodes as they are shown
history.py   the use of workers, nodes and groups over time
control.py   changes by users and by the control loop, behind one lock
"""
