"""A worker of `benchmarks/gpu`: reduce between two processes; the first one prints the bandwidth."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

ROUNDS = 10
with_gpu = torch.cuda.is_available()
rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank) if with_gpu else torch.device("cpu")
if with_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if with_gpu else "gloo")
numbers = torch.full((64 * 2**20 if with_gpu else 2**18,), float(rank + 1), device=device)
dist.all_reduce(numbers)
assert float(numbers[0]) == 3.0, "1 + 2 came out as something else"
start = time.monotonic()
for _ in range(ROUNDS):
    dist.all_reduce(numbers)
if with_gpu:
    torch.cuda.synchronize()
seconds = (time.monotonic() - start) / ROUNDS
dist.destroy_process_group()
if rank == 0:
    print(
        json.dumps(
            {
                "backend": "nccl" if with_gpu else "gloo",
                "gb_per_s": round(numbers.numel() * 4 / 1e9 / seconds, 1),
            }
        )
    )
