"""Building blocks of TAEHV: 2-D convolutions over frames folded into the batch.

Frames are folded with time outermost: a batch of N videos of T frames is a tensor ``(T * N, C, H, W)``. The
frames before all others are then ``x[:-N]``, and all but the first k frames of every video are ``x[k * N:]``:
views, not copies. Parameter names and shapes are those of the published weights (madebyollin/taehv, MIT).

The blocks compute the same as the architecture in a different way, to save memory: a training step on 8 clips
of 480×720×12 in bfloat16 peaks at 30.2 GiB instead of 45.2, with 0.80 × the FLOPs and 0.85 × the bytes moved
(`benchmarks/taehv_roofline.py`). Gradients are written by hand if autograd would fill and copy whole tensors.
The layout of frames in memory, channels last or not, is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class _ConvOfTwoFrames(torch.autograd.Function):
    """A 3×3 convolution of every frame, plus another one of the frame before it (zeros before the first).

    Written by hand because autograd, for ``y[n:] += conv(x[:-n])``, fills and copies two whole tensors.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, of_now: Tensor, of_past: Tensor, bias: Tensor, n_videos: int) -> Tensor:
        ctx.save_for_backward(x, of_now, of_past)
        ctx.n_videos = n_videos
        y = F.conv2d(x, of_now, bias, padding=1)
        if x.shape[0] > n_videos:
            y[n_videos:] += F.conv2d(x[:-n_videos], of_past, padding=1)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, of_now, of_past = ctx.saved_tensors
        (grad,), n, wants_x = grads, ctx.n_videos, ctx.needs_input_grad[0]
        of_x, of_weight, of_bias = _conv_backward(grad, x, of_now, [True, wants_x], with_bias=True)
        of_past_weight = torch.zeros_like(of_past)
        if x.shape[0] > n:
            of_past_x, of_past_weight, _ = _conv_backward(grad[n:], x[:-n], of_past, [True, wants_x])
            if wants_x:
                of_x[:-n] += of_past_x
        return of_x, of_weight, of_past_weight, of_bias, None


def _conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, wanted: list[bool], *, with_bias: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by input, weight and bias of a 3×3 convolution that keeps the frame's size."""
    weights, inputs = wanted
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        grad, x, weight, [weight.shape[0]] if with_bias else None,
        [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [inputs, weights, with_bias],
    )  # fmt: skip
    return gradients


class _SplitFrames(torch.autograd.Function):
    """``(T * N, s * C, H, W)`` → ``((T * s - drop) * N, C, H, W)``: one copy forward, one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, n_videos: int, drop: int) -> Tensor:
        ctx.sizes, ctx.shape = (stride, n_videos, drop), x.shape
        n_frames, n_channels = x.shape[0] * stride - drop * n_videos, x.shape[1] // stride
        split = _empty_like(x, n_frames, n_channels, *x.shape[2:])
        for to, of in _paired(split, x, stride, n_videos, drop):
            to.copy_(of)
        return split

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (stride, n_videos, drop) = grads, ctx.sizes
        of_x = _empty_like(grad, *ctx.shape)
        for of, to in _paired(grad, of_x, stride, n_videos, drop):
            to.copy_(of)
        _by_frame(of_x, stride, n_videos)[0, :drop] = 0
        return of_x, None, None, None


def _paired(
    split: Tensor, x: Tensor, stride: int, n_videos: int, drop: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return views of ``split`` and ``x`` that hold the same numbers: the first time step, and the rest."""
    frames = torch.unflatten(split, 0, (-1, n_videos))
    steps = _by_frame(x, stride, n_videos)
    yield frames[: stride - drop], steps[0, drop:]
    if len(steps) > 1:
        yield torch.unflatten(frames[stride - drop :], 0, (-1, stride)), steps[1:]


def _by_frame(x: Tensor, stride: int, n_videos: int) -> Tensor:
    """View ``(T * N, s * C, H, W)`` as ``(T, s, N, C, H, W)``."""
    steps = torch.unflatten(x, 0, (-1, n_videos))
    return torch.unflatten(steps, 2, (stride, -1)).transpose(1, 2)


def _empty_like(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout(x))


def layout(x: Tensor) -> torch.memory_format:
    """Return the memory layout of a tensor."""
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if channels_last else torch.contiguous_format


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
        halves = torch.unflatten(first.weight, 1, (2, -1))
        of_now, of_past = (halves[:, k].contiguous() for k in (0, 1))
        hidden = _ConvOfTwoFrames.apply(x, of_now, of_past, first.bias, n_videos)  # type: ignore[no-untyped-call]
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

    There is no nonlinearity between the two, so their product is a 3×3 convolution with stride 2, too. The
    result of the 1×1 convolution at full resolution is never computed.
    """
    kernel = torch.einsum("omhw,mi->oihw", halve.weight, pool.conv.weight.flatten(1))
    # einsum's strides are unrelated to the layout of the frames, and could make conv2d convert those.
    kernel = kernel.contiguous(memory_format=layout(x))
    return F.conv2d(_join_frames(x, pool.stride, n_videos), kernel, stride=2, padding=1)


def _join_frames(x: Tensor, stride: int, n_videos: int) -> Tensor:
    """``(T * N, C, H, W)`` → ``(T / s * N, s * C, H, W)`` in one copy that keeps the layout."""
    if stride == 1:
        return x
    if layout(x) == torch.channels_last:
        pixels = torch.unflatten(x.permute(0, 2, 3, 1), 0, (-1, stride, n_videos))
        return pixels.permute(0, 2, 3, 4, 1, 5).flatten(4, 5).flatten(0, 1).permute(0, 3, 1, 2)
    return torch.unflatten(x, 0, (-1, stride, n_videos)).transpose(1, 2).flatten(2, 3).flatten(0, 1)


def upsample(x: Tensor, grow: TGrow, project: nn.Conv2d, n_videos: int, drop_frames: int = 0) -> Tensor:
    """Apply nearest upsampling ×2, ``grow`` and the 3×3 convolution after it as one transposed convolution.

    Repeating each pixel twice is a transposed convolution with a 2×2 kernel of ones; followed by a 3×3
    convolution it is one with a 4×4 kernel and stride 2, with 16 instead of 36 products a low-resolution
    pixel and no enlarged copy. The first ``drop_frames`` output frames of every video are left out, and
    input frames that only they need are not computed.
    """
    whole, rest = divmod(drop_frames, grow.stride)
    x = x[whole * n_videos :]
    growth = grow.conv.weight.view(grow.stride, project.in_channels, -1)
    kernel = torch.einsum("omhw,smi->isohw", project.weight, growth).flatten(1, 2)
    kernel = _merge_with_doubling(kernel).contiguous(memory_format=layout(x))
    x = F.conv_transpose2d(x, kernel, stride=2, padding=1)
    if grow.stride == 1:
        return x
    split: Tensor = _SplitFrames.apply(x, grow.stride, n_videos, rest)  # type: ignore[no-untyped-call]
    return split


def _merge_with_doubling(kernel: Tensor) -> Tensor:
    """Turn a 3×3 convolution's kernel into the 4×4 kernel of "double each pixel, then convolve", transposed.

    The transposed convolution mirrors its kernel; convolving with 2×2 ones is two shifted sums.
    """
    mirrored = kernel.flip(2, 3)
    rows = F.pad(mirrored, (0, 0, 0, 1)) + F.pad(mirrored, (0, 0, 1, 0))
    return F.pad(rows, (0, 1)) + F.pad(rows, (1, 0))
