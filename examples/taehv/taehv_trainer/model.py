"""TAEHV: video ↔ latents, 8×8 smaller in space and 4× in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from taehv_trainer.blocks import Clamp, MemBlock, TGrow, TPool, conv3x3, downsample, upsample

_ENCODER_TIME_STRIDES = (2, 2, 1)
_DECODER_TIME_STRIDES = (1, 2, 2)
TIME_FACTOR = 4  # frames a latent
SPACE_FACTOR = 8  # pixels a latent, along each side
TRIMMED_FRAMES = TIME_FACTOR - 1  # leading output frames that no input frame corresponds to


@dataclass(frozen=True)
class Widths:
    """Channels of the encoder, of the decoder's four resolutions, and MemBlocks a stage."""

    encoder: int
    decoder: tuple[int, int, int, int]
    blocks: int


SIZES = {
    "full": Widths(encoder=64, decoder=(256, 128, 64, 64), blocks=3),
    "small": Widths(encoder=24, decoder=(48, 32, 24, 24), blocks=1),
}


class TAEHV(nn.Module):
    """Tiny autoencoder of video. Videos are NTCHW, RGB in [0, 1]; latents are NTCHW."""

    def __init__(
        self, size: str = "full", latent_channels: int = 16, *, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        widths = SIZES[size]
        self.latent_channels = latent_channels
        self.activation_checkpointing = activation_checkpointing
        self._stage_length = widths.blocks
        self.encoder = nn.Sequential(*_encoder_layers(widths, latent_channels))
        self.decoder = nn.Sequential(*_decoder_layers(widths, latent_channels))
        self._initialize()

    def forward(self, videos: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(latents, reconstruction)`` of ``(N, T, 3, H, W)`` videos, T a multiple of 4.

        The reconstruction has T - 3 frames and stands for ``videos[:, :-3]``.
        """
        latents = self.encode(videos)
        return latents, self.decode(latents)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the parameters, and so of the input."""
        return next(self.parameters()).dtype

    def encode(self, videos: Tensor) -> Tensor:
        """Map ``(N, T, 3, H, W)`` to latents ``(N, T / 4, C, H / 8, W / 8)``."""
        n_videos = videos.shape[0]
        layers = list(self.encoder)
        length = 2 + self._stage_length
        x = layers[1](layers[0](_fold(videos)))
        for start in range(2, len(layers) - 1, length):
            x = self._run(_encoder_stage, x, layers[start : start + length], n_videos)
        return _unfold(layers[-1](x), n_videos)

    def decode(self, latents: Tensor) -> Tensor:
        """Map latents ``(N, T, C, h, w)`` to ``(N, 4 * T - 3, 3, 8 * h, 8 * w)``; values may leave [0, 1]."""
        n_videos = latents.shape[0]
        layers = list(self.decoder)
        length = self._stage_length + 3
        x = layers[2](layers[1](layers[0](_fold(latents))))
        for start in range(3, len(layers) - 2, length):
            drop_frames = TRIMMED_FRAMES if start + length == len(layers) - 2 else 0
            x = self._run(_decoder_stage, x, layers[start : start + length], n_videos, drop_frames)
        return _unfold(layers[-1](layers[-2](x)), n_videos)

    def _run(self, stage: object, *args: object) -> Tensor:
        if self.activation_checkpointing and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(stage, *args, use_reentrant=False))
        return cast(Tensor, stage(*args))  # type: ignore[operator]

    @torch.no_grad()
    def _initialize(self) -> None:
        """Start as a plain image autoencoder: MemBlocks as their skips, time averaged and repeated.

        Kaiming's scale everywhere, without the factor for a ReLU at the two outputs: with it, or with torch's
        default, training stays near a mean-colour image for hundreds of steps. The output starts grey.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                linear = module in (self.encoder[-1], self.decoder[-1])
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if linear else "relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, MemBlock):
                nn.init.zeros_(cast(nn.Conv2d, module.conv[4]).weight)
            elif isinstance(module, TPool | TGrow):
                weight = module.conv.weight
                same = torch.eye(min(weight.shape[:2]))[..., None, None]
                weight.copy_(same.repeat(weight.shape[0] // len(same), weight.shape[1] // len(same), 1, 1))
                if isinstance(module, TPool):
                    weight /= module.stride
        nn.init.constant_(cast(Tensor, cast(nn.Conv2d, self.decoder[-1]).bias), 0.5)


def _encoder_layers(widths: Widths, latent_channels: int) -> list[nn.Module]:
    width = widths.encoder
    layers: list[nn.Module] = [conv3x3(3, width), nn.ReLU(inplace=True)]
    for stride in _ENCODER_TIME_STRIDES:
        layers += [TPool(width, stride), conv3x3(width, width, stride=2, bias=False)]
        layers += [MemBlock(width, width) for _ in range(widths.blocks)]
    return [*layers, conv3x3(width, latent_channels)]


def _decoder_layers(widths: Widths, latent_channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = [Clamp(), conv3x3(latent_channels, widths.decoder[0]), nn.ReLU(inplace=True)]
    for stride, n_in, n_out in zip(_DECODER_TIME_STRIDES, widths.decoder, widths.decoder[1:], strict=False):
        layers += [MemBlock(n_in, n_in) for _ in range(widths.blocks)]
        # The upsampling itself happens in `upsample`; Identity holds its place in the published numbering.
        layers += [nn.Identity(), TGrow(n_in, stride), conv3x3(n_in, n_out, bias=False)]
    return [*layers, nn.ReLU(inplace=True), conv3x3(widths.decoder[-1], 3)]


def _encoder_stage(x: Tensor, layers: list[nn.Module], n_videos: int) -> Tensor:
    pool, halve, *blocks = layers
    x = downsample(x, cast(TPool, pool), cast(nn.Conv2d, halve), n_videos)
    for block in blocks:
        x = block(x, n_videos)
    return x


def _decoder_stage(x: Tensor, layers: list[nn.Module], n_videos: int, drop_frames: int) -> Tensor:
    *blocks, _, grow, project = layers
    for block in blocks:
        x = block(x, n_videos)
    return upsample(x, cast(TGrow, grow), cast(nn.Conv2d, project), n_videos, drop_frames)


def _fold(videos: Tensor) -> Tensor:
    return videos.transpose(0, 1).flatten(0, 1)


def _unfold(frames: Tensor, n_videos: int) -> Tensor:
    return frames.reshape(-1, n_videos, *frames.shape[1:]).transpose(0, 1)
