"""A job whose nodes make each step together, and that resumes at its last step: ``lockstep.py FOLDER``.

Rank 0 serves the others at MASTER_ADDR:MASTER_PORT, and for each step writes a line into FOLDER/steps: the
step, its host, MASTER_ADDR. It ends well once FOLDER/finish exists. Who loses a partner fails.
"""

import os
import socket
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
STEPS, FINISH = FOLDER / "steps", FOLDER / "finish"
HOST, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def lead() -> None:
    step = int(STEPS.read_text().splitlines()[-1].split()[0]) if STEPS.exists() else 0
    with socket.create_server(("", PORT)) as server:
        others = [server.accept()[0] for _ in range(WORLD - 1)]
    while not FINISH.exists():
        for other in others:
            hear(other)
        step += 1
        with STEPS.open("a") as file:
            file.write(f"{step} {socket.gethostname()} {HOST}\n")
        print(f"Step {step}/100000", flush=True)
        for other in others:
            other.sendall(b"s")
        time.sleep(0.2)
    for other in others:
        hear(other)
        other.sendall(b"f")


def follow() -> None:
    leader = connected()
    while True:
        leader.sendall(b"r")
        if hear(leader) == b"f":
            return


def connected() -> socket.socket:
    while True:
        try:
            return socket.create_connection((HOST, PORT))
        except OSError:
            time.sleep(0.1)


def hear(partner: socket.socket) -> bytes:
    told = partner.recv(1)
    if not told:
        sys.exit("a partner is lost")
    return told


lead() if RANK == 0 else follow()
