"""Training step of the shipped full model against the same architecture written straightforwardly.

Both start from the same weights and take the same input: forward, L1 loss, backward, AdamW. They run
alternately, so that whatever else the machine does meets both; the medians' ratio is printed, and the largest
difference of outputs and gradients, checked in float64 where rounding cannot hide a mistake.

    python benchmarks/taehv_step.py [--size 64] [--batch 1] [--rounds 15] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from taehv_eager import EagerTAEHV
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "taehv"))
from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.blocks import MemBlock
from taehv_trainer.model import TAEHV

LIMIT = 1.0  # ours may take at most this share of the straightforward step
TOLERANCE = 1e-9  # relative, in float64


def gradients(model: nn.Module, videos: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the reconstruction and every parameter's gradient of one L1 loss."""
    model.zero_grad()
    _, reconstruction = model(videos)
    F.l1_loss(reconstruction, videos[:, :-3]).backward()
    return reconstruction.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def largest_difference(ours: nn.Module, theirs: nn.Module, videos: Tensor) -> float:
    """Return the largest difference of outputs and gradients, relative to the tensor's largest value."""
    ours.double()
    theirs.double()
    our_output, our_gradients = gradients(ours, videos.double())
    their_output, their_gradients = gradients(theirs, videos.double())
    assert len(our_gradients) == len(their_gradients)
    pairs = zip([our_output, *our_gradients], [their_output, *their_gradients], strict=True)
    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    ours.float()
    theirs.float()
    return difference


def step_seconds(model: nn.Module, optimizer: torch.optim.Optimizer, videos: Tensor) -> float:
    """Return the time of one training step."""
    start = time.perf_counter()
    _, reconstruction = model(videos)
    F.l1_loss(reconstruction, videos[:, :-3]).backward()
    optimizer.step()
    optimizer.zero_grad()
    if videos.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> int:
    """Run the benchmark; returns 1 when the limit or the tolerance is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=64, help="height and width of a clip (12 frames)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours, theirs = TAEHV(ARCHITECTURES["full"]).to(device), EagerTAEHV().to(device)
    for block in ours.modules():
        if isinstance(block, MemBlock):  # as shipped they start at zero, which would compare nothing
            nn.init.kaiming_normal_(cast(nn.Conv2d, block.conv[4]).weight)
    theirs.load_state_dict(ours.state_dict())
    difference = largest_difference(ours, theirs, torch.rand(2, 8, 3, 32, 32, device=device))

    videos = torch.rand(given.batch, 12, 3, given.size, given.size, device=device)
    models = [(m, torch.optim.AdamW(m.parameters(), lr=1e-5)) for m in (ours, theirs)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(given.rounds + 2):
        for (model, optimizer), times in zip(models, seconds, strict=True):
            times.append(step_seconds(model, optimizer, videos))
        if number == 1:  # the first two rounds only warm up
            seconds[0].clear()
            seconds[1].clear()
    medians = [statistics.median(times) for times in seconds]
    result = {
        "input": f"{given.batch}x12x3x{given.size}x{given.size}, {device}, {given.threads} threads",
        "ours_s": round(medians[0], 4),
        "eager_s": round(medians[1], 4),
        "ratio": round(medians[0] / medians[1], 3),
        "ratio_limit": LIMIT,
        "largest_relative_difference_float64": difference,
    }
    print(json.dumps(result, indent=2))
    return 0 if medians[0] <= LIMIT * medians[1] and difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
