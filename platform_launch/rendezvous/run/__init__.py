"""The rendezvous of a run: nodes gather, node 0 pronounces a verdict, and all hear how the run ended.

taking_part   a node's part, in a thread of its launcher      leading      node 0's side, in another thread
arriving      a node until the run starts                     gathering    node 0 until all are there and
agree searching     where the rendezvous may be (places), and who opens it when node 0 is lost staying       a
node while the run goes on                    settlement   node 0 while the run goes on task          what the
launcher gives and hears               state        what nodes and node 0 send each other
"""
