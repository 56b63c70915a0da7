"""TAEHV: video ↔ latents, 8×8 smaller in space (times the patch size) and 4 or 8 times in time."""

from __future__ import annotations

from itertools import chain
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from taehv_trainer.architecture import Architecture
from taehv_trainer.blocks import Clamp, MemBlock, TGrow, TPool, conv3x3, downsample, upsample


class TAEHV(nn.Module):
    """Tiny autoencoder of video. Videos are NTCHW, RGB in [0, 1]; latents are NTCHW."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        activation_checkpointing: bool = False,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        # Memory layout of the frames; cuDNN looks at either frames or weights.
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self.activation_checkpointing = activation_checkpointing
        # Stem, three stages, head; in a flat sequence for the names of the published weights.
        self._encoder_stages, self._decoder_stages = (
            _encoder_stages(architecture),
            _decoder_stages(architecture),
        )
        self.encoder = nn.Sequential(*chain(*self._encoder_stages))
        self.decoder = nn.Sequential(*chain(*self._decoder_stages))
        self._initialize()

    def forward(self, videos: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(latents, reconstruction)`` of ``(N, T, 3, H, W)`` videos.

        If T is a multiple of ``time_factor``, the reconstruction has ``T - trimmed_frames`` frames and
        corresponds to the first ones of the video.
        """
        latents = self.encode(videos)
        return latents, self.decode(latents)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the parameters, and so of the input."""
        return next(self.parameters()).dtype

    def encode(self, videos: Tensor) -> Tensor:
        """Map ``(N, T, 3, H, W)`` to latents ``(N, ceil(T / time_factor), C, h, w)``.

        Missing frames at the end are filled with the last one.
        """
        missing = -videos.shape[1] % self.architecture.time_factor
        if missing:
            videos = torch.cat([videos, videos[:, -1:].expand(-1, missing, -1, -1, -1)], 1)
        n_videos = videos.shape[0]
        (project, relu), *stages, (head,) = self._encoder_stages
        x = F.pixel_unshuffle(_fold(videos), self.architecture.patch_size)
        x = relu(project(x.contiguous(memory_format=self._layout)))
        for stage in stages:
            x = self._run(_encoder_stage, x, stage, n_videos)
        return _unfold(head(x), n_videos)

    def decode(self, latents: Tensor) -> Tensor:
        """Map latents ``(N, T, C, h, w)`` to ``(N, time_factor * T - trimmed_frames, 3, H, W)``.

        Values may leave [0, 1].
        """
        n_videos = latents.shape[0]
        (clamp, project, first_relu), *stages, (relu, head) = self._decoder_stages
        x = first_relu(project(clamp(_fold(latents).contiguous(memory_format=self._layout))))
        for stage in stages:
            drop_frames = self.architecture.trimmed_frames if stage is stages[-1] else 0
            x = self._run(_decoder_stage, x, stage, n_videos, drop_frames)
        x = F.pixel_shuffle(head(relu(x)), self.architecture.patch_size)
        return _unfold(x, n_videos)

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

    @torch.no_grad()
    def start_latents_at_zero(self) -> None:
        """Start an encoder that is to learn a teacher's latents, whose scale is not known.

        Latents many times as large as the teacher's would be made smaller by the quickest way there is: the
        first steps drive the features before them below zero, and ReLUs that are off everywhere stay off. An
        autoencoder without a teacher must not start so: its decoder would learn to do without latents.
        """
        last = cast(nn.Conv2d, self.encoder[-1])
        nn.init.zeros_(last.weight)
        nn.init.zeros_(cast(Tensor, last.bias))


def _encoder_stages(architecture: Architecture) -> list[list[nn.Module]]:
    width = architecture.encoder_width
    stem: list[nn.Module] = [conv3x3(3 * architecture.patch_size**2, width), nn.ReLU(inplace=True)]
    stages: list[list[nn.Module]] = [
        [TPool(width, stride), conv3x3(width, width, stride=2, bias=False)]
        + [MemBlock(width, width) for _ in range(architecture.blocks)]
        for stride in architecture.time_strides
    ]
    return [stem, *stages, [conv3x3(width, architecture.latent_channels)]]


def _decoder_stages(architecture: Architecture) -> list[list[nn.Module]]:
    widths = architecture.decoder_widths
    stem: list[nn.Module] = [Clamp(), conv3x3(architecture.latent_channels, widths[0]), nn.ReLU(inplace=True)]
    # The upsampling itself happens in `upsample`; Identity holds its place in the published numbering.
    stages: list[list[nn.Module]] = [
        [MemBlock(n_in, n_in) for _ in range(architecture.blocks)]
        + [nn.Identity(), TGrow(n_in, stride), conv3x3(n_in, n_out, bias=False)]
        for stride, n_in, n_out in zip(reversed(architecture.time_strides), widths, widths[1:], strict=False)
    ]
    return [stem, *stages, [nn.ReLU(inplace=True), conv3x3(widths[-1], 3 * architecture.patch_size**2)]]


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
    return torch.unflatten(frames, 0, (-1, n_videos)).transpose(0, 1)
