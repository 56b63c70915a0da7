"""The rendezvous of a run: nodes gather, node 0 pronounces a verdict, and all hear how the run ended.

process       the helper process of each node, which its launcher talks to (launcher, own_launcher)
taking_part   a node's part in it                 leading      node 0's side of that process
arriving      a node until the run starts         gathering    node 0 until all are there and agree
searching     where the rendezvous may be (places), and who opens it when node 0 is lost
staying       a node while the training runs      settlement   node 0 while the training runs
state         what nodes and node 0 tell each other
"""
