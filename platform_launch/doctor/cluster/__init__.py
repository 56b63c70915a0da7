"""What only all nodes together can try: who reaches whom, and a real collective between them.

Every node's doctor starts ``part.py`` in a child process (it imports torch). They meet in a TCPStore on
node 0, whose ``director`` says what comes next and never waits for anybody without a limit:

    meet       who is there, where it listens                        roster
    connect    everyone tries everyone, on a port of each (matrix)   reach/RANK
    rounds     groups of nodes run a collective (measure);           round/K, result/K/RANK
               pairing decides who with whom, so that a fault shows where it is
    document   all of it, read by every node, so that all of them say the same (judge)
"""
