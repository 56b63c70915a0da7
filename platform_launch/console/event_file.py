"""The events of one launch, as JSON lines next to its log. Losing them never stops the run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from platform_launch import files
from platform_launch.console.log_writer import LogWriter
from platform_launch.events import Event, as_json, beside


class EventFile:
    """A new file next to ``log`` for the events, each written at once and whole. It may be lost."""

    def __init__(self, log: Path, node_rank: int) -> None:
        self.node_rank = node_rank
        self._writer: LogWriter | None = None
        with suppress(OSError):
            self._writer = LogWriter(files.create_new([beside(log)])[0])

    def append(self, event: Event) -> None:
        """Write an event."""
        if self._writer is None:
            return
        try:
            self._writer.write(as_json(event, self.node_rank))
        except OSError:
            self._writer = None

    def close(self) -> None:
        """Close the file; later events are dropped."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.close()
