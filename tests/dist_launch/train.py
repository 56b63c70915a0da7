"""A tiny training: gloo, one all_reduce a step. Prints what all ranks agree on, and where it is."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(int(sys.argv[1])):
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print(
        f"Step {step} | rank {dist.get_rank()} of {dist.get_world_size()} | sum {total.item():g}", flush=True
    )
    time.sleep(0.2)
dist.destroy_process_group()
print(f"finished in process {os.getpid()}", flush=True)
