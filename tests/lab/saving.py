"""A small training on gloo whose ranks save when asked to stop; the higher the rank, the longer it takes.

    torchrun --nproc-per-node 2 tests/lab/saving.py FOLDER [--workers 2 --method spawn --exit 0]

Each rank writes ``ready-RANK`` when it can be asked, and ``rank-RANK.pt`` when it has saved. The save takes a
new process group and more data, as real ones do.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Numbers(IterableDataset[torch.Tensor]):
    """Endless data that takes its workers a moment."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(0.01)
            yield torch.ones(2)


def main() -> int:
    """Run one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--method", default="fork", help="how a worker is started")
    parser.add_argument(
        "--save-s", type=float, default=1.0, help="what each further rank's save takes longer"
    )
    parser.add_argument("--exit", type=int, default=143)
    parser.add_argument("--restore", type=int, default=0, help="1: a second request ends it")
    options = parser.parse_args()
    asked: list[int] = []

    def request(number: int, _frame: object) -> None:
        asked.append(number)
        if options.restore:
            signal.signal(number, signal.SIG_DFL)

    for number in REQUESTS:
        signal.signal(number, request)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    method = options.method if options.workers else None
    data = iter(DataLoader(Numbers(), num_workers=options.workers, multiprocessing_context=method))
    step, stop = 0, torch.zeros(1)
    while not stop.item():
        next(data)
        step += 1
        stop = torch.tensor([len(asked)])
        dist.all_reduce(stop)
        if step == 3:
            (options.folder / f"ready-{rank}").touch()
    dist.barrier(dist.new_group())
    next(data)
    time.sleep(options.save_s * (1 + rank))
    torch.save({"step": step}, options.folder / f"rank-{rank}.pt")
    return int(options.exit)


if __name__ == "__main__":
    sys.exit(main())
