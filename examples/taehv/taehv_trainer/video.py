"""Decoding: a file on disk → the frames asked for, upright, covering the wanted size, as uint8."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import av
import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]  # (T, H, W, 3), RGB
_T = TypeVar("_T")

# Transfer characteristics (ITU-T H.273) whose values are not those of ordinary video.
_HDR = {16: "PQ (SMPTE ST 2084)", 18: "HLG (ARIB STD-B67)"}
# Errors of network storage during a failover; the second try usually succeeds.
_TRANSIENT = {
    errno.EIO, errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EREMOTEIO
}  # fmt: skip
# Program and elementary streams: after a seek the times of their frames are guesses.
_COUNTED_ONLY = {"mpeg", "mpegvideo", "h264", "hevc", "m4v"}
_PAUSES_S = (0.2, 1.0)
_BACK_FRAMES = 64  # how much earlier a second seek starts if the first one arrived too late


class UnreadableVideoError(Exception):
    """A file that cannot be decoded, or has too few frames. Training goes on without it and counts it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class VideoIndex:
    """When each frame of a video is shown, in ticks of the file, and how large it is when upright.

    Frames are counted in the order in which they are shown: with a variable frame rate, or in a file that
    does not begin at time 0, no other number identifies a frame by its time.
    """

    times: NDArray[np.int64]
    height: int
    width: int
    quarter_turns: int = 0  # counterclockwise, from how it is stored to how it is shown
    seekable: bool = True  # a frame is identified by its time, also after a seek

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.times)

    def covering(self, height: int, width: int, short_side: int = 0) -> tuple[int, int]:
        """Return the size that covers ``height`` × ``width`` and has at least the short side."""
        scale = max(height / self.height, width / self.width, short_side / min(self.height, self.width))
        return max(height, round(self.height * scale)), max(width, round(self.width * scale))

    def scaled(self, short_side: int) -> tuple[int, int]:
        """Return the size with this short side, whatever the video's own."""
        scale = short_side / min(self.height, self.width)
        return round(self.height * scale), round(self.width * scale)


def read_index(path: Path) -> VideoIndex:
    """Find all frames of a video. Raises UnreadableVideoError if it is broken or HDR."""
    return _patiently(lambda: _read_index(path))


def read_frames(
    path: Path, index: VideoIndex, size: tuple[int, int], start: int = 0, count: int | None = None
) -> Frames:
    """Decode ``count`` frames from frame ``start`` on, or all that follow, scaled to ``size``.

    A start is found by seeking to the key frame before it, so that long files cost no more than short ones.
    Raises UnreadableVideoError if the file is broken or ends too early.
    """
    stop = len(index) if count is None else start + count
    return _patiently(lambda: _read_frames(path, index, size, start, stop))


def all_frames(path: Path, index: VideoIndex, size: tuple[int, int]) -> Iterator[Frames]:
    """Decode a whole video, frame by frame (H, W, 3), without keeping it in memory."""
    with _opened(path) as (container, stream):
        for frame in container.decode(stream):
            yield _upright(frame, index, size)


def _read_index(path: Path) -> VideoIndex:
    with _opened(path) as (container, stream):
        first = next(container.decode(stream))
        if first.color_trc in _HDR:
            raise UnreadableVideoError(
                path,
                f"is HDR, {_HDR[first.color_trc]}, which is not mapped: convert it to SDR (BT.709) first",
            )
        turns = round(first.rotation / 90) % 4
        height, width = first.height, round(first.width * _pixel_aspect(first, stream))
        height, width = (width, height) if turns % 2 else (height, width)
        times = _evenly_spaced_times(container, stream, first.pts)
        can_seek = container.format.name not in _COUNTED_ONLY
    for find in (_times_of_packets, _times_of_frames):
        if times is None:
            with _opened(path) as (container, stream):
                times = find(container, stream)
    assert times is not None
    return VideoIndex(times, height, width, turns, seekable=can_seek and bool((np.diff(times) > 0).all()))


def _pixel_aspect(frame: Any, stream: Any) -> float:
    """Return how many times as wide as high a pixel is shown. FFmpeg's 0 stands for unknown."""
    return float(getattr(frame, "sample_aspect_ratio", None) or stream.sample_aspect_ratio or 1)


def _evenly_spaced_times(container: Any, stream: Any, first: int | None) -> NDArray[np.int64] | None:
    """Take the times from the sample table of an MP4, which costs no reading, if the frame rate is constant.

    The table holds decoding times; they only determine when frames are shown if they are evenly spaced.
    """
    if "mp4" not in container.format.name or first is None or len(stream.index_entries) != stream.frames:
        return None
    entries = list(stream.index_entries)
    times = np.array([entry.timestamp for entry in entries], dtype=np.int64)
    steps = np.diff(times)
    if any(entry.is_discard for entry in entries) or (len(steps) and steps.max() - steps.min() > 1):
        return None
    times += first - times[0]
    return times


def _times_of_packets(container: Any, stream: Any) -> NDArray[np.int64] | None:
    """Read the whole file without decoding it; None if packets have no presentation times."""
    packets = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
    if any(packet.pts is None for packet in packets):
        return None
    times = np.array(sorted(packet.pts for packet in packets), dtype=np.int64)
    return times if len(np.unique(times)) == len(times) else None


def _times_of_frames(container: Any, stream: Any) -> NDArray[np.int64]:
    """Decode the whole file: slow, but whatever can be decoded can be counted."""
    times = [frame.pts for frame in container.decode(stream)]
    return np.array([-1 if time is None else time for time in times], dtype=np.int64)


def _read_frames(path: Path, index: VideoIndex, size: tuple[int, int], start: int, stop: int) -> Frames:
    # A seek may arrive late: then from further back, and at last from the beginning, counting frames.
    seeks = (start, max(0, start - _BACK_FRAMES)) if index.seekable else ()
    for begin in dict.fromkeys((*seeks, 0)):
        with _opened(path) as (container, stream):
            if begin:
                container.seek(int(index.times[begin]), stream=stream)
                frames = _matching(container, stream, index, size, start, stop)
            else:
                frames = _counted(container, stream, index, size, start, stop)
        if len(frames) == stop - start:
            return np.stack(frames)
    raise UnreadableVideoError(path, f"ends {len(frames)} frames after frame {start}")


def _matching(
    container: Any, stream: Any, index: VideoIndex, size: tuple[int, int], start: int, stop: int
) -> list[Frames]:
    """Decode after a seek, until a frame is not the expected one."""
    wanted = index.times[start:stop]
    tolerance = (int(np.diff(index.times).min()) - 1) // 2
    frames: list[Frames] = []
    for packet in container.demux(stream):
        # Frames that no other one needs are not decoded before the first that is wanted.
        early = packet.pts is not None and packet.pts < wanted[0] - tolerance
        stream.codec_context.skip_frame = "NONREF" if early else "DEFAULT"
        for frame in packet.decode():
            if frame.pts is not None and frame.pts < wanted[0] - tolerance:
                continue
            if frame.pts is None or frame.is_corrupt or abs(frame.pts - wanted[len(frames)]) > tolerance:
                return frames
            frames.append(_upright(frame, index, size))
            if len(frames) == len(wanted):
                return frames
    return frames


def _counted(
    container: Any, stream: Any, index: VideoIndex, size: tuple[int, int], start: int, stop: int
) -> list[Frames]:
    frames: list[Frames] = []
    for number, frame in enumerate(container.decode(stream)):
        if number >= start:
            frames.append(_upright(frame, index, size))
        if number == stop - 1:
            break
    return frames


def _upright(frame: Any, index: VideoIndex, size: tuple[int, int]) -> Frames:
    height, width = size[::-1] if index.quarter_turns % 2 else size
    pixels: Frames = frame.reformat(width, height, "rgb24", interpolation="BICUBIC").to_ndarray()
    return np.rot90(pixels, index.quarter_turns) if index.quarter_turns else pixels


def _patiently(read: Callable[[], _T]) -> _T:
    """Try again after a read error that usually passes."""
    for pause_s in _PAUSES_S:
        try:
            return read()
        except UnreadableVideoError as error:
            if getattr(error.__cause__, "errno", None) not in _TRANSIENT:
                raise
        time.sleep(pause_s)
    return read()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise UnreadableVideoError(path, "has no video stream")
            yield container, container.streams.video[0]
    except (av.FFmpegError, OSError, ValueError, ZeroDivisionError, TypeError, StopIteration) as error:
        raise UnreadableVideoError(path, f"cannot be decoded: {error or 'no frames'}") from error
