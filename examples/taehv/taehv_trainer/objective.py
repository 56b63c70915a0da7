"""What is minimized: the distance to the video, to a teacher's latents, and an adversary's judgement."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from taehv_trainer.adversary import Adversary
from taehv_trainer.config import TrainConfig
from taehv_trainer.model import TAEHV


class Objective(nn.Module):
    """The model and its losses in one ``forward``, which contains everything that gradients flow through.

    Without a teacher it is an autoencoder. With one it distils: the encoder learns the teacher's latents, and
    the decoder learns to decode the teacher's latents, which is what it will be used for. A decoder that has
    only seen the student's latents decodes the teacher's badly, and pulls the student's away from them.

    DDP and DeepSpeed only notice calls of ``forward``; calling another method of the wrapped model would
    bypass them.
    """

    def __init__(self, model: TAEHV, config: TrainConfig, adversary: Adversary | None = None) -> None:
        super().__init__()
        self.model = model
        self._distance = F.l1_loss if config.reconstruction_loss == "l1" else F.mse_loss
        self._reconstruction_weight = config.reconstruction_loss_weight
        self._encoder_weight = config.encoder_loss_weight
        self._decodes_own_latents = config.decoder_input == "student"
        self._adversary = adversary
        self._adversarial_weight = config.adversarial_loss_weight

    def forward(
        self, frames: Tensor, target_latents: Tensor | None = None, lacks_past: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return ``loss`` and its parts for uint8 ``frames`` (N, T, 3, H, W).

        ``lacks_past`` (N) marks clips from the middle of a video whose target latents were encoded from the
        whole video: their first latent depends on frames that are not in the clip, so it is not a target.
        ``mse`` and ``latent_error`` (MSE of the latents ÷ variance of the target; 1 if nothing was learned)
        carry no gradient.
        """
        latents = self.model.encode(scaled(frames, self.model.dtype))
        given = latents
        if target_latents is not None and not self._decodes_own_latents:
            given = target_latents.to(latents.dtype)
        reconstruction = self.model.decode(given).float()
        target = scaled(frames[:, : reconstruction.shape[1]])
        parts = {"reconstruction": self._distance(reconstruction, target)}
        loss = self._reconstruction_weight * parts["reconstruction"]
        if target_latents is not None:
            parts["encoder"] = latent_distance(latents, target_latents, lacks_past)
            loss = loss + self._encoder_weight * parts["encoder"]
        if self._adversary is not None:
            parts["adversarial"] = self._adversary.loss(reconstruction, target)
            loss = loss + self._adversarial_weight * parts["adversarial"]
        with torch.no_grad():
            parts["mse"] = F.mse_loss(reconstruction.clamp(0, 1), target)
            if target_latents is not None:
                parts["latent_error"] = parts["encoder"] / target_latents.float().var()
        return {"loss": loss, **parts}


def latent_distance(latents: Tensor, target: Tensor, lacks_past: Tensor | None = None) -> Tensor:
    """Return the mean squared distance of latents (N, T, C, h, w), leaving out first ones without a past."""
    distance = (latents.float() - target.float()).square().mean((2, 3, 4))
    if lacks_past is None:
        return distance.mean()
    counts = torch.ones_like(distance)
    counts[:, 0] = (~lacks_past).float()
    return (distance * counts).sum() / counts.sum().clamp(min=1)


def scaled(frames: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn uint8 frames into RGB in [0, 1]."""
    return frames.to(dtype) / 255
