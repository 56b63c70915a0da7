"""All logs together within a limit: the oldest runs go first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.server.logs.segments import generations, worker_folder
from platform_launch.procguard.server.logs.store import Logs

_EVERY_S = 60.0
# Beyond the limit, room for a while is made at once.
_LEFT = 0.9
# Agents send the log of a worker's two newest runs: one that was dropped would come again.
_STILL_SENT = 2
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kept:
    """The log of a run: when something was written to it last (seconds since the epoch), and its bytes."""

    written: float
    size: int
    worker: str
    generation: int


class LogRetention:
    """Looks once a minute from :meth:`start` to :meth:`stop` whether the logs are within ``limit_bytes``.

    ``workers`` tells the names of those that may still send; of a node that was forgotten every log may go.
    """

    def __init__(self, logs: Logs, limit_bytes: int, workers: Callable[[], Collection[str]]) -> None:
        self._logs = logs
        self._limit = limit_bytes
        self._workers = workers
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._work, name="procguard-room", daemon=True)
        self._trouble = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look that is being taken."""
        self._leave.set()
        self._thread.join()

    def make(self) -> int:
        """Drop what is too much, and return the bytes that are left."""
        kept = _all_kept(self._logs.root)
        total = sum(run.size for run in kept)
        if total <= self._limit:
            return total
        workers = set(self._workers())
        runs: dict[str, list[int]] = {}
        for run in kept:
            runs.setdefault(run.worker, []).append(run.generation)
        for run in sorted(kept, key=lambda run: run.written):
            if total <= self._limit * _LEFT:
                break
            sent = sorted(runs[run.worker])[-_STILL_SENT:] if run.worker in workers else []
            if run.generation not in sent:
                self._logs.drop(run.worker, run.generation)
                total -= run.size
        return total

    def _work(self) -> None:
        while True:
            trouble = ""
            try:
                total = self.make()
            except Exception as error:  # a thread that ended would leave the disk to fill up
                trouble = f"logs cannot be kept within their limit: {error or type(error).__name__}"
            else:
                if total > self._limit:
                    trouble = (
                        f"the logs take {total / 2**30:.1f} GiB of {self._limit / 2**30:g}: what is left are "
                        "the two newest runs of each worker; raise logs_limit_gib, or lower log_limit_mib"
                    )
            if trouble and not self._trouble:  # once, not every minute
                _LOG.warning("%s", trouble)
            self._trouble = trouble
            if self._leave.wait(_EVERY_S):
                return


def _all_kept(root: Path) -> list[_Kept]:
    """Return what lies below ``root``; what others put there, or remove meanwhile, is left out."""
    found = []
    for folder in root.glob("*/*"):
        worker = f"{folder.parent.name}-{folder.name}"
        with suppress(NotFound):
            for generation in generations(worker_folder(root, worker)):
                with suppress(FileNotFoundError):
                    files = [entry.stat() for entry in (folder / str(generation)).iterdir()]
                    written = max((file.st_mtime for file in files), default=0.0)
                    found.append(_Kept(written, sum(file.st_size for file in files), worker, generation))
    return found
