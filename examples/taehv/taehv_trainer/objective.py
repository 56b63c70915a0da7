"""What is minimized: distance to the video, and to a teacher's latents where there is a teacher."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from taehv_trainer.config import TrainConfig
from taehv_trainer.model import TAEHV, TRIMMED_FRAMES


class Objective(nn.Module):
    """The model together with its losses, so that one ``forward`` holds all that gradients flow through.

    A wrapper (DDP, DeepSpeed) sees only calls of ``forward``; a method called on the wrapped model would go
    around it.
    """

    def __init__(self, model: TAEHV, config: TrainConfig) -> None:
        super().__init__()
        self.model = model
        self._distance = F.l1_loss if config.reconstruction_loss == "l1" else F.mse_loss
        self._reconstruction_weight = config.reconstruction_loss_weight
        self._encoder_weight = config.encoder_loss_weight

    def forward(self, frames: Tensor, target_latents: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``loss`` and its parts for uint8 ``frames`` (N, T, 3, H, W); ``mse`` is without gradient."""
        latents, reconstruction = self.model(scaled(frames, self.model.dtype))
        target = scaled(frames[:, :-TRIMMED_FRAMES])
        reconstruction = reconstruction.float()
        parts = {"reconstruction": self._distance(reconstruction, target)}
        loss = self._reconstruction_weight * parts["reconstruction"]
        if target_latents is not None:
            parts["encoder"] = F.mse_loss(latents.float(), target_latents.float())
            loss = loss + self._encoder_weight * parts["encoder"]
        with torch.no_grad():
            parts["mse"] = F.mse_loss(reconstruction.clamp(0, 1), target)
        return {"loss": loss, **parts}


def scaled(frames: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn uint8 frames into RGB in [0, 1]."""
    return frames.to(dtype) / 255
