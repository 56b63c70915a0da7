"""A training whose ranks sum a number each step, over plain sockets: the start of torch costs seconds.

    summing.py STEPS     that many steps
    summing.py FILE      until the file exists

Prints each step on each rank, and at the end its process.
"""

import os
import socket
import sys
import time
from pathlib import Path

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connected() -> list[socket.socket]:
    """Return rank 0's connections to all others, or another rank's connection to rank 0."""
    if RANK == 0:
        with socket.create_server(("", MASTER[1])) as server:
            return [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
    while True:
        try:
            return [socket.create_connection(MASTER)]
        except OSError:
            time.sleep(0.1)


def summed(peers: list[socket.socket], values: bytes) -> bytes:
    """Return the sums of what all ranks bring."""
    if RANK:
        peers[0].sendall(values)
        return received(peers[0], len(values))
    for peer in peers:
        theirs = received(peer, len(values))
        values = bytes(one + other for one, other in zip(values, theirs, strict=True))
    for peer in peers:
        peer.sendall(values)
    return values


def received(peer: socket.socket, size: int) -> bytes:
    """Wait for what another rank sends."""
    data = peer.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        sys.exit("a partner is lost")
    return data


def main(wanted: str) -> None:
    """Make the steps."""
    peers = connected()
    step = done = 0
    while not done:
        last = step + 1 >= int(wanted) if wanted.isdecimal() else Path(wanted).exists()
        total, done = summed(peers, bytes((RANK + 1, last)))
        print(f"Step {step} | rank {RANK} of {WORLD_SIZE} | sum {total}", flush=True)
        step += 1
        time.sleep(0.1)
    print(f"finished in process {os.getpid()}", flush=True)


main(sys.argv[1])
