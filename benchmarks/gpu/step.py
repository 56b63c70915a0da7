"""A worker of `benchmarks/gpu`: time one way of taking a training step, and print it as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent))
import taehv_roofline

from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.config import TrainConfig
from taehv_trainer.model import TAEHV
from taehv_trainer.objective import Objective

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=["ours", "twin"])
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--batch", type=int, default=12)
given = parser.parse_args()

with_gpu = torch.cuda.is_available()
device = torch.device("cuda" if with_gpu else "cpu")
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)
if given.model == "ours":
    model = TAEHV(ARCHITECTURES["full"], channels_last=given.channels_last)
    module: torch.nn.Module = Objective(model, TrainConfig())
else:
    module = taehv_roofline.Plain()
module = module.to(device, torch.bfloat16)
size = taehv_roofline.SIZE if with_gpu else (8, 3, 32, 32)
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=with_gpu)
frames = torch.randint(0, 256, (given.batch, *size), dtype=torch.uint8, device=device)
start = time.monotonic()
if given.compile:
    module.compile()


def step() -> torch.Tensor:
    """Take one step."""
    loss: torch.Tensor = module(frames)["loss"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for _ in range(5 if with_gpu else 1):
    step()
if with_gpu:
    torch.cuda.synchronize()
warm_up_s = time.monotonic() - start
start = time.monotonic()
for _ in range(given.steps):
    loss = step()
if with_gpu:
    torch.cuda.synchronize()
seconds = (time.monotonic() - start) / given.steps
print(
    json.dumps(
        {
            "step_ms": round(seconds * 1e3, 2),
            "steps_per_s": round(1 / seconds, 3),
            "warm_up_s": round(warm_up_s, 1),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if with_gpu else None,
            "loss": round(float(loss), 4),
        }
    )
)
