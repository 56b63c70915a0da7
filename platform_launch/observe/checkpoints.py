"""Checkpoints that a job writes: which, how long a save takes, and whether one followed a request to stop.

This needs no help from the script or its libraries. A checkpoint is a file with a known suffix, or in a
folder whose name counts steps. The files that a rank has open for writing (/proc) show how long a save takes
and where checkpoints are. To find a checkpoint that followed a request, those folders, the working directory
and the folders among the script's arguments are listed before and after; the clock of a file server does not
matter.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_SCAN_S = 2.0
# After a request to stop.
_LOOK_CLOSELY_S = 0.25
# Timestamps of files may be this far behind.
_COARSE_NS = 20_000_000
# A scheduler warns, requests and kills within this time.
_SAME_REQUEST_S = 600.0
# The longest pause between the files of one save.
_SAME_SAVE_S = 5.0
_MOST_FOLDERS = 16
_MOST_ENTRIES = 5000
_MOST_DEPTH = 4
_LISTING_S = 3.0
# How long a request may wait for the first listing.
_LISTED_S = 0.5

_SUFFIXES = frozenset(
    (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npz", ".msgpack", ".pdparams", ".tar")
)
_STEP = re.compile(r"(?:step|iter(?:ation)?|checkpoint|ckpt)s?[-_=]?(\d{1,12})(?!\d)", re.IGNORECASE)
_EPOCH = re.compile(r"epoch[-_=]?(\d{1,12})(?!\d)", re.IGNORECASE)
_KEEPS = re.compile(r"checkpoint|ckpt", re.IGNORECASE)
_PASSED_OVER = frozenset(("site-packages", "node_modules", "__pycache__", "wandb", "proc", "sys", "dev"))
_SYSTEM = ("/dev/", "/proc/", "/sys/", "/memfd:")


class Checkpoint(NamedTuple):
    """A checkpoint: a file, or the folder that holds its files. ``step`` is the one in its name, if any."""

    path: Path
    step: int | None


@dataclass(frozen=True)
class StopReport:
    """The result of a request to stop.

    ``path`` is the last checkpoint, written after the request if ``saved``; None if none was found. ``age_s``
    is its age at the end. ``unfinished``: it was still being written when its rank was killed.
    """

    saved: bool
    path: str | None = None
    step: int | None = None
    age_s: float | None = None
    unfinished: bool = False


def checkpoint_of(file: Path) -> Checkpoint | None:
    """Return the checkpoint that a file belongs to, None if there is none."""
    own = _STEP.search(file.name) if file.suffix in _SUFFIXES else None
    if own is not None:
        return Checkpoint(file, int(own[1]))
    for folder in list(file.parents)[:3]:
        counted = _STEP.search(folder.name) or _EPOCH.search(folder.name)
        if counted is not None:
            return Checkpoint(folder, int(counted[1]))
        if folder.name.isdecimal() and _KEEPS.search(folder.parent.name):
            return Checkpoint(folder, int(folder.name))
    if file.suffix not in _SUFFIXES:
        return None
    counted = _EPOCH.search(file.name)
    return Checkpoint(file, int(counted[1]) if counted is not None else None)


def written_by(pid: int) -> set[Path] | None:
    """Return the files of checkpoints that a process has open for writing, None once it has ended."""
    found: set[Path] = set()
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208 - names alone are wanted
    except OSError:
        return None
    if not numbers:  # a process that is exiting, or a zombie
        return None
    for number in numbers:
        with suppress(OSError):
            target = os.readlink(f"{folder}/{number}")  # noqa: PTH115 - hundreds, every two seconds
            if not target.startswith("/") or target.startswith(_SYSTEM) or target.endswith(" (deleted)"):
                continue
            path = Path(target)
            if checkpoint_of(path) is not None and _writes(pid, number):
                found.add(path)
    return found


def _writes(pid: int, number: str) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines():
        if line.startswith("flags:"):
            return bool(int(line.split()[1], 8) & (os.O_WRONLY | os.O_RDWR))
    return False


def listing(folders: Iterable[Path]) -> dict[Path, int]:
    """Return the files of checkpoints below some folders, and when each was changed (ns, the file system's).

    Stops early in folders that are large or slow.
    """
    deadline = time.monotonic() + _LISTING_S
    found: dict[Path, int] = {}
    for folder in folders:
        waiting, left = deque([(str(folder), 0)]), _MOST_ENTRIES
        while waiting and left > 0 and time.monotonic() < deadline:
            place, depth = waiting.popleft()
            with suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            hidden = entry.name.startswith(".") or entry.name in _PASSED_OVER
                            if depth < _MOST_DEPTH and not hidden:
                                waiting.append((entry.path, depth + 1))
                        elif checkpoint_of(Path(entry.path)) is not None:
                            found[Path(entry.path)] = entry.stat().st_mtime_ns
    return found


def folders_named(arguments: Sequence[str], working_directory: Path) -> list[Path]:
    """Return the working directory, and the folders that a script's arguments name."""
    found = []
    for argument in arguments:
        value = argument.partition("=")[2] or argument
        with suppress(OSError, ValueError):
            path = (working_directory / value).resolve()
            if path.is_dir():
                found.append(path)
    return list(dict.fromkeys((*found, working_directory)))[:_MOST_FOLDERS]


class CheckpointWatch:
    """Watches the checkpoints of one node in its own thread, from :meth:`start` to :meth:`report`.

    ``pids()`` are the ranks; ``folders()`` is where checkpoints may be kept; ``report_save(seconds)`` is
    called after each save that took long enough to be measured.
    """

    def __init__(
        self,
        pids: Callable[[], list[int]],
        folders: Callable[[], list[Path]],
        report_save: Callable[[float], None],
    ) -> None:
        self._pids = pids
        self._folders = folders
        self._report_save = report_save
        self._learned: dict[Path, None] = {}
        self._began_at = self._seen_at = 0.0
        self._writing: set[Path] = set()
        self._last: set[Path] = set()
        self._before: dict[Path, int] | None = None
        self._at_start: dict[Path, int] = {}
        self._began_ns = time.time_ns() - _COARSE_NS
        self._requested_at = float("-inf")
        self._is_requested, self._late_ns = False, 0
        self._ended, self._woken, self._listed = Event(), Event(), Event()
        self._lock = Lock()

    def start(self) -> None:
        """Begin. Raises RuntimeError if no thread can be started."""
        Thread(target=self._work, name="checkpoints", daemon=True).start()

    def request(self) -> None:
        """Record a request to stop; one soon after another counts as the same.

        Returns once the first listing is done, which takes milliseconds unless a disk is slow.
        """
        now = time.monotonic()
        with self._lock:
            if now - self._requested_at > _SAME_REQUEST_S:
                self._before = None
                self._listed.clear()
            self._requested_at, self._is_requested = now, True
        self._woken.set()
        if not self._listed.wait(_LISTED_S):
            self._late_ns = time.time_ns()

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._woken.set()

    def report(self, *, killed: bool, limit_s: float) -> StopReport | None:
        """Return the result of a request; None without one, or if it is not known in time.

        ``killed``: the ranks were killed.
        """
        self.stop()
        if not self._is_requested:
            return None
        return _within(limit_s, lambda: self._report(killed=killed))

    def newest_written(self, limit_s: float) -> Checkpoint | None:
        """Return the newest checkpoint that was written since the start; None also if that takes too long."""
        return _within(limit_s, self._newest_written)

    def _newest_written(self) -> Checkpoint | None:
        after = listing(self._everywhere())
        new = [
            path
            for path, changed in after.items()
            if self._at_start.get(path, changed) != changed
            # a folder that was not known at the start: use the clock
            or (path not in self._at_start and changed >= self._began_ns)
        ]
        newest = max(new, key=lambda path: after[path], default=None)
        return checkpoint_of(newest) if newest is not None else None

    def _report(self, *, killed: bool) -> StopReport:
        with self._lock:
            before, last = self._before, self._last
        after = listing(self._everywhere())
        if before is None or self._late_ns:  # ranks may have saved before it was known: use the clock
            before = {path: changed for path, changed in after.items() if changed < self._late_ns}
        new = [path for path, changed in after.items() if before.get(path) != changed]
        newest = max(new or after, key=lambda path: after[path], default=None)
        if newest is None:
            return StopReport(saved=False)
        checkpoint = checkpoint_of(newest) or Checkpoint(newest, None)
        return StopReport(
            saved=bool(new),
            path=str(checkpoint.path),
            step=checkpoint.step,
            age_s=round(max(0.0, (time.time_ns() - after[newest]) / 1e9), 1),
            unfinished=killed and bool(new) and bool(last.intersection(new)),
        )

    def _everywhere(self) -> list[Path]:
        return list(dict.fromkeys((*self._learned, *self._folders())))

    def _work(self) -> None:
        self._at_start = listing(self._everywhere())
        while not self._ended.is_set():
            requested_s = time.monotonic() - self._requested_at
            self._woken.wait(_LOOK_CLOSELY_S if requested_s < _SAME_REQUEST_S else _SCAN_S)
            self._woken.clear()
            if self._ended.is_set():
                break
            if self._is_requested and self._before is None:
                before = listing(self._everywhere())
                with self._lock:
                    self._before = before
                self._listed.set()
            self._scan()
        self._conclude_save()

    def _scan(self) -> None:
        seen = [paths for pid in self._pids() if (paths := written_by(pid)) is not None]
        writing, now = set().union(*seen), time.monotonic()
        if seen:
            with self._lock:
                self._last = writing
        if writing:
            for path in writing - self._writing:
                self._learn(path)
            if not self._began_at:
                self._began_at = now
            self._seen_at = now
        elif self._began_at and now - self._seen_at > _SAME_SAVE_S:
            self._conclude_save()
        self._writing = writing

    def _conclude_save(self) -> None:
        """Report how long a save took; it began and ended between two scans."""
        if self._began_at:
            took_s, self._began_at = self._seen_at - self._began_at + _SCAN_S, 0.0
            self._report_save(took_s)

    def _learn(self, path: Path) -> None:
        checkpoint = checkpoint_of(path)
        if checkpoint is not None and len(self._learned) < _MOST_FOLDERS:
            self._learned.setdefault(checkpoint.path.parent)


def _within(limit_s: float, find: Callable[[], T | None]) -> T | None:
    """Return the result of a function, None if it takes too long, because a file system may hang."""
    found: list[T | None] = []
    thread = Thread(target=lambda: found.append(find()), name="checkpoint-report", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    thread.join(limit_s)
    return found[0] if found else None
