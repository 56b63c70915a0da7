"""Whether a run that usually writes often has stopped writing: of others, silence is no sign."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from platform_launch.procguard.api.wire import STALLED_S

_WRITES = 5
"""Pauses between writes that are known before a run has a rhythm."""
_LONGEST_S = STALLED_S / 3
"""A run with longer pauses has none: it may only write once for each evaluation."""


class OutputRhythm:
    """Follows when an output was written last; :meth:`read` is to be called every second or so."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._written_at: float | None = None
        self._pauses: deque[float] = deque(maxlen=64)

    def read(self, path: Path | None) -> float | None:
        """Return for how long a run has written nothing; None if it has no rhythm, or cannot be seen."""
        if path != self._path:
            self._path, self._written_at = path, None
            self._pauses.clear()
        if path is None:
            return None
        try:
            written_at = path.stat().st_mtime
        except OSError:
            return None
        if self._written_at is not None and written_at > self._written_at:
            self._pauses.append(written_at - self._written_at)
        self._written_at = written_at
        regular = len(self._pauses) >= _WRITES and max(self._pauses) < _LONGEST_S
        return max(0.0, time.time() - written_at) if regular else None

    def stalled(self, path: Path) -> bool:
        """Tell whether a run with a rhythm has stopped writing."""
        silent_s = self.read(path)
        return silent_s is not None and silent_s > STALLED_S
