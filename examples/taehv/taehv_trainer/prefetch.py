"""Batches on their way to the GPU while the step before them is computed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from taehv_trainer.clips import Clip


def on_device(batches: Iterator[Clip], device: torch.device) -> Iterator[Clip]:
    """Return the same batches with their tensors on ``device``.

    On a GPU they are copied on a separate stream. The host is a step or more ahead of the GPU, so the copy
    overlaps with the step that the GPU is computing.
    """
    if device.type != "cuda":
        for batch in batches:
            yield _moved(batch, device)
        return
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for batch in batches:
        with torch.cuda.stream(copying):
            moved = _moved(batch, device)
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(copying)
        for tensor in (moved.frames, moved.latents, moved.lacks_past):
            if tensor is not None:
                tensor.record_stream(computing)  # do not reuse its memory before the step has used it
        yield moved


def _moved(batch: Clip, device: torch.device) -> Clip:
    def move(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(device, non_blocking=True)

    return batch._replace(
        frames=batch.frames.to(device, non_blocking=True),
        latents=move(batch.latents),
        lacks_past=move(batch.lacks_past),
    )
