"""The rendezvous of a run: the nodes gather, node 0 decides if they can start, all learn how it ended.

participation  one node's part, in a thread of its launcher
arriving       a node until the run starts
searching      where the rendezvous may be (hosts), and which node opens it when node 0 is lost
member         a node during the run
leading        node 0's side, in another thread
gathering      node 0 until all nodes have joined and agree
run_monitor    node 0 during the run
task           what the launcher passes in, and what it receives
state          what nodes and node 0 send each other
texts          what launchers send each other
"""
