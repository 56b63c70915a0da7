"""Building blocks of TAEHV: 2-D convolutions over frames folded into the batch.

Frames are folded with time outermost: a batch of N videos of T frames is a tensor ``(T * N, C, H, W)``. The
frames before all others are then ``x[:-N]``, and all but the first k frames of every video are ``x[k * N:]``:
views, not copies. Parameter names and shapes are those of the published weights (madebyollin/taehv, MIT).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn


def conv3x3(n_in: int, n_out: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """Return a convolution that keeps the frame's size (or halves it with ``stride=2``)."""
    return nn.Conv2d(n_in, n_out, 3, padding=1, stride=stride, bias=bias)


class Clamp(nn.Module):
    """Soft limit of latents to (-3, 3)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``tanh(x / 3) * 3``."""
        return torch.tanh(x / 3) * 3


class _AddToLater(torch.autograd.Function):
    """``now[n:] += past`` without the copies that autograd makes for a write into a slice."""

    @staticmethod
    def forward(ctx: Any, now: Tensor, past: Tensor) -> Tensor:
        ctx.mark_dirty(now)
        ctx.n_first = now.shape[0] - past.shape[0]
        now[ctx.n_first :] += past
        return now

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0][ctx.n_first :]


class MemBlock(nn.Module):
    """Three convolutions that see a frame and the one before it (zeros before the first), plus a skip."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            conv3x3(n_in * 2, n_out),
            nn.ReLU(inplace=True),
            conv3x3(n_out, n_out),
            nn.ReLU(inplace=True),
            conv3x3(n_out, n_out),
        )
        self.skip = nn.Conv2d(n_in, n_out, 1, bias=False) if n_in != n_out else nn.Identity()

    def forward(self, x: Tensor, n_videos: int) -> Tensor:
        """Map ``(T * n_videos, n_in, H, W)`` to ``(T * n_videos, n_out, H, W)``.

        The first convolution is linear in its two inputs, so the previous frame's share is computed from the
        frames themselves and added one frame later: no concatenated or padded copy is made, and the share of
        the zeros before the first frame is not computed at all.
        """
        first, relu, second, _, third = self.conv
        assert isinstance(first, nn.Conv2d)
        halves = first.weight.view(first.out_channels, 2, -1, *first.kernel_size)
        of_now, of_past = halves.transpose(0, 1).contiguous()
        hidden = F.conv2d(x, of_now, first.bias, padding=1)
        if x.shape[0] > n_videos:
            earlier = F.conv2d(x[:-n_videos], of_past, padding=1)
            hidden = _AddToLater.apply(hidden, earlier)  # type: ignore[no-untyped-call]
        hidden = third(relu(second(relu(hidden))))
        return F.relu_(hidden.add_(self.skip(x)))


class TPool(nn.Module):
    """``stride`` frames into one. ``conv`` is applied by `downsample`, merged with what follows it."""

    def __init__(self, n_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(n_channels * stride, n_channels, 1, bias=False)


class TGrow(nn.Module):
    """One frame into ``stride`` frames. ``conv`` is applied by `upsample`, merged with its neighbours."""

    def __init__(self, n_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(n_channels, n_channels * stride, 1, bias=False)


def downsample(x: Tensor, pool: TPool, halve: nn.Conv2d, n_videos: int) -> Tensor:
    """Apply ``pool`` and the strided convolution after it as one convolution.

    Nothing lies between the two, so their product is again a 3×3 convolution with stride 2; the 1×1
    convolution's result at full resolution is never made.
    """
    # contiguous(): einsum's strides read as "channels last" and would turn every frame around.
    kernel = torch.einsum("omhw,mi->oihw", halve.weight, pool.conv.weight.flatten(1)).contiguous()
    if pool.stride > 1:
        frames = x.reshape(-1, pool.stride, n_videos, *x.shape[1:])
        x = frames.transpose(1, 2).reshape(-1, pool.stride * x.shape[1], *x.shape[2:])
    return F.conv2d(x, kernel, stride=2, padding=1)


def upsample(x: Tensor, grow: TGrow, project: nn.Conv2d, n_videos: int, drop_frames: int = 0) -> Tensor:
    """Apply nearest upsampling ×2, ``grow`` and the 3×3 convolution after it as one transposed convolution.

    Repeating each pixel twice is a transposed convolution with a 2×2 kernel of ones; followed by a 3×3
    convolution it is one with a 4×4 kernel and stride 2, with 16 instead of 36 products a low-resolution
    pixel and no enlarged copy. The first ``drop_frames`` output frames of every video are left out, and
    input frames that only they need are not computed.
    """
    whole, rest = divmod(drop_frames, grow.stride)
    x = x[whole * n_videos :]
    n_in, n_out = project.in_channels, project.out_channels
    growth = grow.conv.weight.view(grow.stride, n_in, -1)
    kernel = torch.einsum("omhw,smi->isohw", project.weight, growth).flatten(1, 2)
    kernel = _merge_with_doubling(kernel.contiguous())
    x = F.conv_transpose2d(x, kernel, stride=2, padding=1)
    if grow.stride > 1:
        frames = x.reshape(-1, n_videos, grow.stride, n_out, *x.shape[2:])
        x = frames.transpose(1, 2).reshape(-1, n_out, *x.shape[2:])
    return x[rest * n_videos :]


def _merge_with_doubling(kernel: Tensor) -> Tensor:
    """Turn a 3×3 convolution's kernel into the 4×4 kernel of "double each pixel, then convolve", transposed.

    The transposed convolution mirrors its kernel; convolving with 2×2 ones is two shifted sums.
    """
    mirrored = kernel.flip(2, 3)
    rows = F.pad(mirrored, (0, 0, 0, 1)) + F.pad(mirrored, (0, 0, 1, 0))
    return F.pad(rows, (0, 1)) + F.pad(rows, (1, 0))
