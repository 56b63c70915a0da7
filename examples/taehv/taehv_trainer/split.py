"""Which frames are held out for validation: decided by a video's content, not by a seed, name or order.

So a resumed or fine-tuned run holds out the same frames, also when videos are added, renamed or moved.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

# An end of so many frames is held out whether or not a clip is shorter, so that runs with clips of different
# lengths agree.
_SHORTEST_END = 16
_READ_BYTES = 2**16
# Of fewer videos it may well be that none has a mark below the fraction; more need not all be opened to know.
_FEW = 256
_UNREADABLE = 2.0


class Split:
    """Divides videos between training and validation.

    Of a long video the end is held out. Of videos too short for that, those are held out whole whose mark, a
    number in [0, 1) computed from their content, is below the fraction; of a few videos at least the one with
    the lowest mark, and never the one with the highest.
    """

    def __init__(self, videos: list[Path], fraction: float) -> None:
        self._videos = videos
        self._fraction = fraction
        self._limits = (fraction, 1.0)
        if len(videos) <= _FEW:
            marks = sorted(mark for video in videos if (mark := content_mark(video)) != _UNREADABLE)
            if len(marks) > 1:
                self._limits = (max(fraction, marks[0]), marks[-1])
            else:
                self._limits = (0.0, 1.0)  # the only one is trained on
        self._shortest_end = _SHORTEST_END if len(videos) > 1 else 1

    def training_frames(self, number: int, n_frames: int, span: int, step: int) -> range | None:
        """Return the frames to cut clips of ``span`` frames from; None if there are none.

        The first held-out frame is a multiple of ``step``.
        """
        boundary = self._boundary(n_frames, step)
        if self._is_divided(n_frames, boundary, span) or not self._is_held_out(number):
            return range(boundary if boundary >= span else n_frames)
        return None

    def validation_frames(self, number: int, n_frames: int, span: int, step: int) -> range | None:
        """Return the frames that are held out; None if there are none, or too few for a clip."""
        boundary = self._boundary(n_frames, step)
        if self._is_divided(n_frames, boundary, span):
            return range(boundary, n_frames)
        return range(n_frames) if self._is_held_out(number) else None

    def _boundary(self, n_frames: int, step: int) -> int:
        boundary = int(n_frames * (1 - self._fraction))
        return boundary - boundary % step

    def _is_divided(self, n_frames: int, boundary: int, span: int) -> bool:
        return boundary >= span and n_frames - boundary >= max(span, self._shortest_end)

    def _is_held_out(self, number: int) -> bool:
        lowest, highest = self._limits
        mark = content_mark(self._videos[number])
        return mark < highest and mark <= lowest


@cache
def content_mark(video: Path) -> float:
    """Return a number in [0, 1) from a file's size and its first and last 64 KiB; 2 if it cannot be read."""
    try:
        with video.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(str(size).encode() + file.read(_READ_BYTES))
            file.seek(max(0, size - _READ_BYTES))
            digest.update(file.read(_READ_BYTES))
    except OSError:
        return _UNREADABLE
    return int.from_bytes(digest.digest()[:8], "big") / 2**64
