"""Train a small network with plain DistributedDataParallel, as an example of a script of your own.

    start_multinode_platform.sh --launcher torchrun --script examples/ddp/train.py -- --steps 300

It knows nothing of platform_launch: it reads what torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT), and without them trains as a single process. The images are drawn, nothing is downloaded.
Ends with 128 + n after signal n (SIGTERM, SIGINT, or SIGUSR1 before a time limit), a checkpoint written.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

SHAPES = ("disc", "square", "cross", "stripes")
SIZE = 24
TRAINING_IMAGES, HELD_OUT_IMAGES = 4096, 512


def main() -> int:
    """Run one process of the training and return its exit code."""
    options = parse_options()
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    # Before the processes meet: one that refuses while others still connect would be their error.
    if options.global_batch % (world_size := int(os.environ["WORLD_SIZE"])):
        raise SystemExit(f"--global-batch {options.global_batch} cannot be shared by {world_size} processes")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    # torch reads neither of them.
    seconds = os.environ.get("TORCH_DISTRIBUTED_TIMEOUT") or os.environ.get("NCCL_TIMEOUT")
    timeout = timedelta(seconds=int(seconds)) if seconds else None
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    try:
        return train(options, device)
    finally:
        dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Plain DDP on drawn images.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--global-batch", type=int, default=128, help="images of one step, over all processes"
    )
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/ddp/checkpoint.pt"))
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps")
    parser.add_argument("--log-every", type=int, default=20, help="steps")
    return parser.parse_args()


def train(options: argparse.Namespace, device: torch.device) -> int:
    """Train from the checkpoint, if there is one, to the last step or to a signal."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_batch = options.global_batch // world_size
    torch.manual_seed(0)
    model = DistributedDataParallel(build_model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    step = load(options.checkpoint, model, optimizer)
    log(f"processes: {world_size} on {device.type}, {local_batch} images each, from step {step}")
    images, labels = draw(TRAINING_IMAGES, seed=0)
    stop = StopRequest(device)
    while step < options.steps:
        mine = batch(step, options.global_batch, len(images))[rank * local_batch :][:local_batch]
        loss = cross_entropy(model(images[mine].to(device)), labels[mine].to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        if step % options.log_every == 0:
            log(f"Step {step}/{options.steps} | Loss: {mean(loss.detach()):.3f}")
        number = stop.agreed()
        if number or step % options.checkpoint_every == 0 or step == options.steps:
            save(options.checkpoint, model, optimizer, step)
        if number:
            log(f"{signal.Signals(number).name}: checkpoint written at step {step}, leaving")
            return 128 + number
    log(f"held-out accuracy: {accuracy(model, device):.3f}")
    return 0


def build_model() -> nn.Module:
    """Return a small convolutional classifier."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, len(SHAPES))),
    )


def draw(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy images, ``(number, 1, SIZE, SIZE)``, and which shape each one shows."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(SHAPES), (number,), generator=random)
    centre = SIZE / 2 + 4 * (torch.rand(2, number, 1, 1, generator=random) - 0.5)
    radius = 4 + 4 * torch.rand(number, 1, 1, generator=random)
    y = torch.arange(SIZE).view(1, -1, 1) - centre[0]
    x = torch.arange(SIZE).view(1, 1, -1) - centre[1]
    inside = torch.maximum(x.abs(), y.abs()) < radius
    kinds = (
        x**2 + y**2 < radius**2,
        inside,
        inside & ((x.abs() < 2) | (y.abs() < 2)),
        inside & ((x + y).floor() % 4 < 2),
    )
    images = torch.stack(kinds)[labels, torch.arange(number)].float()
    images += 0.3 * torch.randn(images.shape, generator=random)
    return images.unsqueeze(1), labels


def batch(step: int, size: int, number: int) -> Tensor:
    """Return the images of one step of the whole job; each epoch has a new order, the same everywhere."""
    epoch, index = divmod(step, number // size)
    order = torch.randperm(number, generator=torch.Generator().manual_seed(epoch))
    return order[index * size : (index + 1) * size]


@torch.no_grad()
def accuracy(model: nn.Module, device: torch.device) -> float:
    """Return the share of held-out images that are named rightly; each process looks at its part."""
    images, labels = draw(HELD_OUT_IMAGES, seed=1)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(images[mine].to(device)).argmax(1) == labels[mine].to(device)).sum()
    dist.all_reduce(right)
    return float(right) / HELD_OUT_IMAGES


def mean(value: Tensor) -> float:
    """Return the mean of a number over all processes, which call this together."""
    total = value.clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def save(path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write the checkpoint, on the main process only: whole, or the one before stays."""
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        unfinished = path.with_name(f".{path.name}")
        torch.save(state, unfinished)
        unfinished.replace(path)
    dist.barrier()


def load(path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """Take up a checkpoint and return its step, 0 without one. Nodes need not share a disk."""
    here = dist.get_rank() == 0 and path.exists()
    found = [torch.load(path, map_location="cpu", weights_only=True) if here else None]
    dist.broadcast_object_list(found)
    if found[0] is None:
        return 0
    model.module.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])
    return int(found[0]["step"])


class StopRequest:
    """Remembers a signal until all processes know of it: they must leave after the same step."""

    def __init__(self, device: torch.device) -> None:
        self._received = 0
        self._device = device
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self._received = number

    def agreed(self) -> int:
        """Return the number of a signal that any process got, or 0; all processes call this together."""
        shared = torch.tensor(self._received, device=self._device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return int(shared)


def log(text: str) -> None:
    """Print a line, on the main process only."""
    if dist.get_rank() == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    exit_code = main()
    # Everything is saved. Threads inside torch may abort the process (SIGABRT) while the interpreter is taken
    # down, which would turn a finished job into a failed one: so it is not taken down.
    os._exit(exit_code)
