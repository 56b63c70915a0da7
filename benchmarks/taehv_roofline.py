"""Expected steps a second and peak memory of the full model on a GPU, counted without one.

A training step runs on fake tensors, which have shapes and no data. Every operation is counted: its FLOPs,
the bytes it reads and writes, and what is alive meanwhile. It is taken to last as long as its FLOPs or its
bytes at the share of the GPU's peaks that good kernels reach (REACHED), whichever is longer. "eager" are
the operations as they are launched; "fused" leaves out everything but convolutions, a bound for what a
compiler can gain by fusing what lies between.

    python benchmarks/taehv_roofline.py [--batch 8 10 12] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from taehv_eager import EagerTAEHV
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "taehv"))
from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.config import TrainConfig
from taehv_trainer.model import TAEHV
from taehv_trainer.objective import Objective

# Convolutions of 64 channels, and element-wise kernels.
REACHED_FLOPS, REACHED_BANDWIDTH = 0.6, 0.85
SIZE = (12, 3, 480, 720)  # of a clip
GIB = 2**30


_MAKE_NOTHING = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.new_empty,
    torch.ops.aten.detach,
)
_ONLY_WRITE = (torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_)


@dataclass(frozen=True)
class Accelerator:
    """Peaks of a GPU from its maker's data sheet: dense bfloat16 FLOP/s, and bytes/s of its memory."""

    name: str
    flops: float
    bandwidth: float


GPUS = (
    Accelerator("H100 SXM 80 GB", 989e12, 3.35e12),
    Accelerator("H200 SXM 141 GB", 989e12, 4.8e12),
    Accelerator("A100 SXM 80 GB", 312e12, 2.04e12),
)


@dataclass
class Count:
    """FLOPs and bytes of each operation of a step, and the largest number of bytes alive."""

    operations: list[tuple[str, float, float]] = field(default_factory=list)
    alive: int = 0
    peak: int = 0

    def seconds(self, gpu: Accelerator, *, fused: bool = False) -> float:
        """Return how long the step lasts on a GPU."""
        return sum(
            max(flops / gpu.flops / REACHED_FLOPS, n_bytes / gpu.bandwidth / REACHED_BANDWIDTH)
            for _, flops, n_bytes in self.operations
            if flops or not fused
        )

    @property
    def flops(self) -> float:
        """All of the step's."""
        return sum(flops for _, flops, _ in self.operations)

    @property
    def bytes(self) -> float:
        """All that is read and written in the step."""
        return sum(n_bytes for _, _, n_bytes in self.operations)


class Counting(TorchDispatchMode):
    """Counts what is dispatched while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Count()
        self._known: set[int] = set()

    def watch(self, tensors: list[Tensor]) -> None:
        """Count what is alive from the beginning."""
        for tensor in tensors:
            self._allocated(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count it."""
        result = func(*args, **(kwargs or {}))
        inputs = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self._allocated(tensor)
        returned = {id(tensor.untyped_storage()) for tensor in outputs}
        writes_input = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
        is_view = outputs and returned <= {id(t.untyped_storage()) for t in inputs} and not writes_input
        packet = func._overloadpacket
        if not outputs or is_view or packet in _MAKE_NOTHING:
            return result
        if packet in _ONLY_WRITE:
            inputs = inputs[1:]
        flops = 0.0
        if packet in flop_registry:
            flops = float(flop_registry[packet](*args, **(kwargs or {}), out_val=result))
        n_bytes = sum(map(_bytes, inputs)) + sum(map(_bytes, outputs))
        if packet is torch.ops.aten.convolution_backward and all(args[-1][:2]):
            n_bytes += _bytes(args[0])  # two kernels read the gradient
        self.count.operations.append((str(func), flops, n_bytes))
        return result

    def _allocated(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._known:
            return
        self._known.add(id(storage))
        size = storage.nbytes()
        self.count.alive += size
        self.count.peak = max(self.count.peak, self.count.alive)
        weakref.finalize(storage, self._freed, id(storage), size)

    def _freed(self, identity: int, size: int) -> None:
        self._known.discard(identity)
        self.count.alive -= size


def _bytes(tensor: Tensor) -> int:
    """Return the bytes that a tensor's values take, those that are repeated by a stride of 0 once."""
    n_values = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        n_values *= size if stride else 1
    return n_values * tensor.element_size()


class Plain(nn.Module):
    """The eager twin with the objective's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = EagerTAEHV()

    def forward(self, frames: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        _, reconstruction = self.model(frames.bfloat16() / 255)
        return {"loss": F.l1_loss(reconstruction.float(), frames[:, :-3].float() / 255)}


def shipped() -> nn.Module:
    """Build the model and objective of the H100 configs."""
    return Objective(TAEHV(ARCHITECTURES["full"]), TrainConfig())


def count_step(build: Callable[[], nn.Module], batch: int) -> Count:
    """Count one training step in bfloat16: forward, backward, and AdamW on float32 copies of the weights."""
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        module = build()
        torch.set_default_dtype(torch.float32)
        masters = [p.detach().float().requires_grad_() for p in module.parameters()]
        optimizer = torch.optim.AdamW(masters, lr=1e-4, foreach=True)
        frames = torch.empty(batch, *SIZE, dtype=torch.uint8)
        counting = Counting()
        counting.watch([*module.parameters(), *masters, frames])
        with counting:
            module(frames)["loss"].backward()
            for master, parameter in zip(masters, module.parameters(), strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float()
            optimizer.step()
        return counting.count


def describe(count: Count, gpu: Accelerator) -> dict[str, float]:
    """Return what is to be expected of a GPU."""
    eager_s, fused_s = count.seconds(gpu), count.seconds(gpu, fused=True)
    return {
        "eager_ms": round(eager_s * 1e3, 1),
        "eager_steps_per_s": round(1 / eager_s, 2),
        "eager_mfu": round(count.flops / gpu.flops / eager_s, 3),
        "fused_ms": round(fused_s * 1e3, 1),
        "fused_steps_per_s": round(1 / fused_s, 2),
    }


def main() -> int:
    """Print the table; returns 1 when the shipped model counts more than the eager twin."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 12, 16])
    parser.add_argument("--output", type=Path, help="write the result there too")
    given = parser.parse_args()
    rows = []
    for batch in given.batch:
        ours, twin = count_step(shipped, batch), count_step(Plain, batch)
        row: dict[str, object] = {"batch": batch}
        for name, count in (("ours", ours), ("eager_twin", twin)):
            row[name] = {
                "tflop": round(count.flops / 1e12, 1),
                "gb_moved": round(count.bytes / 1e9, 1),
                "peak_gib": round(count.peak / GIB, 1),
                **{gpu.name: describe(count, gpu) for gpu in GPUS},
            }
        row["flop_ratio"] = round(ours.flops / twin.flops, 3)
        row["bytes_ratio"] = round(ours.bytes / twin.bytes, 3)
        row["memory_ratio"] = round(ours.peak / twin.peak, 3)
        rows.append(row)
    text = json.dumps(rows, indent=2)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return (
        0 if all(float(str(row[f"{what}_ratio"])) < 1 for row in rows for what in ("flop", "memory")) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
