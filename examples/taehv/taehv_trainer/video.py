"""Decoding: a file on disk → frames that cover the wanted size, as uint8."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]  # (T, H, W, 3), RGB


class UnreadableVideoError(Exception):
    """A file that cannot be decoded, or has too few frames. Training goes on without it and counts it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class VideoShape:
    """What a file says of itself, and the size its frames are decoded to: they cover the wanted size."""

    n_frames: int
    height: int
    width: int

    @property
    def n_bytes(self) -> int:
        """Memory of all decoded frames."""
        return self.n_frames * self.height * self.width * 3


def read_shape(path: Path, height: int, width: int, short_side: int = 0) -> VideoShape:
    """Return the number of frames, and the size that covers ``height`` × ``width`` and has the short side."""
    with _opened(path) as (container, stream):
        n_frames = stream.frames
        if not n_frames and container.duration and stream.average_rate:
            n_frames = int(container.duration / av.time_base * stream.average_rate)
        scale = max(
            height / stream.height, width / stream.width, short_side / min(stream.height, stream.width)
        )
        return VideoShape(
            n_frames, max(height, round(stream.height * scale)), max(width, round(stream.width * scale))
        )


def read_frames(path: Path, shape: VideoShape, start: int = 0, count: int | None = None) -> Frames:
    """Decode ``count`` frames from frame ``start`` on, or everything.

    A start is found by seeking to the key frame before it, so that long files cost no more than short ones.
    Raises UnreadableVideoError when the file is broken or ends too early.
    """
    with _opened(path) as (container, stream):
        begin = -math.inf
        if start > 0:
            begin = float(stream.start_time or 0) * float(stream.time_base) + start / float(
                stream.average_rate
            )
            container.seek(int(begin / stream.time_base), stream=stream)
        frames = []
        for frame in container.decode(stream):
            # Half a frame of tolerance: time stamps are rounded.
            if frame.time is not None and frame.time < begin - 0.5 / float(stream.average_rate):
                continue
            scaled = frame.reformat(shape.width, shape.height, "rgb24", interpolation="BICUBIC")
            frames.append(scaled.to_ndarray())
            if len(frames) == count:
                break
    if not frames or (count is not None and len(frames) < count):
        raise UnreadableVideoError(path, f"ends {len(frames)} frames after frame {start}")
    return np.stack(frames)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise UnreadableVideoError(path, "has no video stream")
            yield container, container.streams.video[0]
    except (av.FFmpegError, OSError, ValueError, ZeroDivisionError, TypeError) as error:
        raise UnreadableVideoError(path, f"cannot be decoded: {error}") from error
