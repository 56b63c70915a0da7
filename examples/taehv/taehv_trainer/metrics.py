"""How close a reconstruction is to its video."""

from __future__ import annotations

import math

import torch
from pytorch_msssim import ssim
from torch import Tensor

from taehv_trainer.model import TAEHV, TRIMMED_FRAMES
from taehv_trainer.objective import scaled


def psnr_db(mse: float) -> float:
    """Return the peak signal-to-noise ratio of images in [0, 1]; 100 dB stands for "no difference"."""
    return -10 * math.log10(max(mse, 1e-10))


@torch.no_grad()
def compare(model: TAEHV, frames: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Reconstruct uint8 ``frames`` (N, T, 3, H, W); return it, clamped to [0, 1], and its quality.

    ``mean_colour_psnr`` is that of an image of the clip's mean colour: what knowing nothing would give.
    """
    _, reconstruction = model(scaled(frames))
    reconstruction = reconstruction.clamp(0, 1)
    target = scaled(frames[:, :-TRIMMED_FRAMES])
    mean_colour = target.mean(dim=(1, 3, 4), keepdim=True)
    return reconstruction, {
        "psnr": psnr_db(float((reconstruction - target).square().mean())),
        "ssim": float(ssim(reconstruction.flatten(0, 1), target.flatten(0, 1), data_range=1.0)),
        "mean_colour_psnr": psnr_db(float((target - mean_colour).square().mean())),
    }
