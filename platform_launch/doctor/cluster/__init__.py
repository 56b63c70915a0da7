"""Checks that need all nodes: which nodes reach each other, and real collectives between them.

Every node's doctor starts ``part`` in a helper process, which can be killed whatever hangs in it. The parts
use a rendezvous with this purpose. On node 0, a ``director`` publishes the next stage (``DoctorState``) and
never waits without a limit:

    join       which nodes are there, and where they listen (Endpoint)
    connect    every node tries to reach every other one (ReachReport)
    rounds     groups of nodes run a collective (measure) and publish the result (Share);
               pairing decides the groups, so that the faulty node can be told
    document   all results, read by every node, so that all report the same (judge)
"""
