"""Encoding and decoding videos of any length in parts that are the same as those of the whole.

Each part is computed together with as much of the past as the model sees, which is then left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from taehv_trainer.model import TAEHV
from taehv_trainer.objective import scaled
from taehv_trainer.video import Frames


@torch.no_grad()
def encode_in_parts(model: TAEHV, frames: Iterable[Frames], chunk: int) -> Iterator[Tensor]:
    """Yield latents (T, C, h, w) of up to ``chunk`` frames (H, W, 3) each; a multiple of ``time_factor``."""
    factor = model.architecture.time_factor
    history = -(-model.architecture.past_frames // factor) * factor
    kept: list[Frames] = []
    n_old = 0
    device = next(model.parameters()).device

    def encode() -> Tensor:
        video = torch.from_numpy(np.stack(kept).transpose(0, 3, 1, 2).copy()).to(device)
        return model.encode(scaled(video, model.dtype)[None])[0, n_old // factor :]

    for frame in frames:
        kept.append(frame)
        if len(kept) - n_old == chunk:
            yield encode()
            kept = kept[-history:]
            n_old = len(kept)
    if len(kept) > n_old:
        yield encode()


@torch.no_grad()
def decode_in_parts(model: TAEHV, latents: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield frames (T, 3, H, W) of parts of latents (T, C, h, w); the first belongs to the first frame."""
    factor, trimmed = model.architecture.time_factor, model.architecture.trimmed_frames
    past: Tensor | None = None
    for part in latents:
        given = part if past is None else torch.cat([past, part])
        n_old = len(given) - len(part)
        # Of a window's frames the first `trimmed` are left out by `decode`; the window before had the others.
        yield model.decode(given[None])[0, max(0, n_old * factor - trimmed) :]
        past = given[-model.architecture.past_latents :]
