"""The same architecture written straightforwardly: what `taehv_step.py` measures the shipped model against.

One layer after the other as the architecture is usually drawn: past frames concatenated, nearest upsampling,
1×1 convolutions where the frame rate changes, and the first three frames cut off at the end. Parameter names
and shapes are the same, so that one state dict fits both.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn


def conv(n_in: int, n_out: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """3×3 convolution."""
    return nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=bias)


class Clamp(nn.Module):
    """tanh(x / 3) * 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Limit latents softly."""
        return 3 * torch.tanh(x / 3)


class MemBlock(nn.Module):
    """Convolutions over a frame and the one before it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            conv(2 * n, n), nn.ReLU(inplace=True), conv(n, n), nn.ReLU(inplace=True), conv(n, n)
        )
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, n_videos: int) -> Tensor:
        """Map ``(n_videos * T, n, H, W)`` to the same shape."""
        video = x.unflatten(0, (n_videos, -1))
        past = F.pad(video, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1].flatten(0, 1)
        return self.act(self.conv(torch.cat([x, past], 1)) + x)


class TPool(nn.Module):
    """Frames into channels, then 1×1."""

    def __init__(self, n: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(n * stride, n, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Join frames."""
        return self.conv(x.reshape(-1, self.stride * x.shape[1], *x.shape[2:]))


class TGrow(nn.Module):
    """1×1, then channels into frames."""

    def __init__(self, n: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(n, n * stride, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Split channels into frames."""
        return self.conv(x).reshape(-1, *x.shape[1:])


class EagerTAEHV(nn.Module):
    """The full model, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        encoder: list[nn.Module] = [conv(3, 64), nn.ReLU(inplace=True)]
        for stride in (2, 2, 1):
            encoder += [
                TPool(64, stride),
                conv(64, 64, stride=2, bias=False),
                *(MemBlock(64) for _ in range(3)),
            ]
        self.encoder = nn.Sequential(*encoder, conv(64, 16))
        decoder: list[nn.Module] = [Clamp(), conv(16, 256), nn.ReLU(inplace=True)]
        for stride, n_in, n_out in ((1, 256, 128), (2, 128, 64), (2, 64, 64)):
            decoder += [MemBlock(n_in) for _ in range(3)]
            decoder += [nn.Upsample(scale_factor=2), TGrow(n_in, stride), conv(n_in, n_out, bias=False)]
        self.decoder = nn.Sequential(*decoder, nn.ReLU(inplace=True), conv(64, 3))

    def forward(self, videos: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents and the reconstruction of ``videos[:, :-3]``."""
        latents = _apply(self.encoder, videos)
        return latents, _apply(self.decoder, latents)[:, 3:]


def _apply(layers: nn.Sequential, videos: Tensor) -> Tensor:
    n_videos = videos.shape[0]
    x = videos.flatten(0, 1)
    for layer in layers:
        x = layer(x, n_videos) if isinstance(layer, MemBlock) else layer(x)
    return x.unflatten(0, (n_videos, -1))
