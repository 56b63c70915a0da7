"""All logs together within a limit: the oldest runs go first."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.server.logs.segments import generations, worker_folder
from platform_launch.procguard.server.logs.store import Logs

EVERY_S = 60.0
# Beyond the limit, room for a while is made at once.
_LEFT = 0.9
# Agents send the log of a worker's two newest runs: one that was dropped would come again.
_STILL_SENT = 2


@dataclass(frozen=True)
class _Kept:
    """The log of a run: when something was written to it last (seconds since the epoch), and its bytes."""

    written: float
    size: int
    worker: str
    generation: int


def keep_within(limit_bytes: int, logs: Logs, workers: Collection[str]) -> str:
    """Drop the oldest logs beyond a limit; return why they are beyond it all the same, empty where not."""
    if make_room(limit_bytes, logs, workers) <= limit_bytes:
        return ""
    # Without how much it is: a reason that differs each time would be logged each time.
    return (
        f"they take more than {limit_bytes / 2**30:g} GiB: what is left are the two newest runs of each "
        "worker; raise logs_limit_gib, or lower log_limit_mib"
    )


def make_room(limit_bytes: int, logs: Logs, workers: Collection[str]) -> int:
    """Drop what is too much, and return the bytes that are left.

    ``workers`` are those that may still send; of a node that was forgotten every log may go.
    """
    kept = _all_kept(logs.root)
    total = sum(run.size for run in kept)
    if total <= limit_bytes:
        return total
    known, runs = set(workers), dict[str, list[int]]()
    for run in kept:
        runs.setdefault(run.worker, []).append(run.generation)
    for run in sorted(kept, key=lambda run: run.written):
        if total <= limit_bytes * _LEFT:
            break
        sent = sorted(runs[run.worker])[-_STILL_SENT:] if run.worker in known else []
        if run.generation not in sent:
            logs.drop(run.worker, run.generation)
            total -= run.size
    return total


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
