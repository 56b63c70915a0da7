"""A training as the seed shows it: reads its data, meets the others, and is examples/ddp if asked."""

from __future__ import annotations

import os
import runpy
import socket
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

LIMIT_S = 600.0  # it only ends a wait in vain; a program by itself, this imports no test
EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp" / "train.py"


def main() -> None:
    """Be one process. The first of each node reads the data; without it the exit code is 3."""
    try:
        if os.environ["LOCAL_RANK"] == "0":
            Path("data/images.txt").read_text(encoding="utf-8")
    except OSError:
        traceback.print_exc()
        sys.exit(3)
    print(
        f"met {meet()}", flush=True
    )  # before torch is imported, which is most of what a short training costs
    if len(sys.argv) > 1:
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def meet() -> str:
    """Meet the others as torch does, where and as the variables say; return the ranks that are there."""
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("", place[1])))
            listener.settimeout(LIMIT_S)
            others = [stack.enter_context(listener.accept()[0]) for _ in range(world_size - 1)]
            ranks = sorted([0, *(int(other.recv(8)) for other in others)])
            for other in others:
                other.sendall(str(ranks).encode())
            return str(ranks)
    with _connected(place) as first:
        first.sendall(str(rank).encode())
        return first.recv(1024).decode()


def _connected(place: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection(place, LIMIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
