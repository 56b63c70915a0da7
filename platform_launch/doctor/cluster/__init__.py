"""What only all nodes together can try: who reaches whom, and a real collective between them.

Every node's doctor starts ``part`` in a helper process, which can be ended whatever hangs in it. They meet
in a rendezvous whose purpose is this series; on node 0 a ``director`` says what comes next (``DoctorState``)
and never waits for anybody without a limit:

    join       who is there, and where it listens (Endpoint)
    connect    everyone tries everyone, on a port of each (ReachReport)
    rounds     groups of nodes run a collective (measure) and say what they found (Share);
               pairing decides who with whom, so that a fault shows where it is
    document   all of it, read by every node, so that all of them say the same (judge)
"""
