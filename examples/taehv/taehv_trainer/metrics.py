"""How close a reconstruction is to its video."""

from __future__ import annotations

import math

import torch
from pytorch_msssim import ssim
from torch import Tensor

from taehv_trainer.model import TAEHV
from taehv_trainer.objective import latent_distance, scaled


def psnr_db(mse: float) -> float:
    """Return the peak signal-to-noise ratio of images in [0, 1]; 100 dB stands for "no difference"."""
    return -10 * math.log10(max(mse, 1e-10))


def detail(frames: Tensor) -> Tensor:
    """Return the mean square of the Laplacian of frames (N, T, 3, H, W)."""
    x = frames[..., 1:-1, 1:-1]
    around = frames[..., :-2, 1:-1] + frames[..., 2:, 1:-1] + frames[..., 1:-1, :-2] + frames[..., 1:-1, 2:]
    return (around - 4 * x).square().mean()


@torch.no_grad()
def compare(
    model: TAEHV, frames: Tensor, target_latents: Tensor | None = None, lacks_past: Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Reconstruct uint8 ``frames`` (N, T, 3, H, W); return it, clamped to [0, 1], and its quality.

    ``sharpness`` is the energy of fine detail (Laplacian) ÷ that of the video: below 1 it is blurred.
    ``mean_colour_psnr`` is that of an image of the clip's mean colour: what knowing nothing would give. With
    a teacher's latents, ``teacher_psnr`` is that of their decoding, ``latent_error`` as in `Objective`.
    """
    latents, reconstruction = model(scaled(frames))
    reconstruction = reconstruction.clamp(0, 1)
    target = scaled(frames[:, : reconstruction.shape[1]])
    distilled = {}
    if target_latents is not None:
        target_latents = target_latents.float()
        of_teacher = model.decode(target_latents).clamp(0, 1)
        distance = latent_distance(latents, target_latents, lacks_past)
        distilled = {
            "teacher_psnr": psnr_db(float((of_teacher - target).square().mean())),
            "latent_error": float(distance / target_latents.var()),
        }
    mean_colour = target.mean(dim=(1, 3, 4), keepdim=True)
    return reconstruction, {
        "psnr": psnr_db(float((reconstruction - target).square().mean())),
        "ssim": float(ssim(reconstruction.flatten(0, 1), target.flatten(0, 1), data_range=1.0)),
        "sharpness": float(detail(reconstruction) / detail(target).clamp(min=1e-12)),
        "mean_colour_psnr": psnr_db(float((target - mean_colour).square().mean())),
        **distilled,
    }
