"""Disk space for logs, results and temporary files."""

from __future__ import annotations

from collections.abc import Iterator

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, error, warning
from platform_launch.hardware.storage import Storage
from platform_launch.text import Phrase

# Below this, a job would soon run out of space. A checkpoint of the example model is 0.2 GiB.
_ENOUGH_GIB = {"logs": 0.5, "output": 5.0, "temporary": 0.5}
_NOTHING_GIB = 1 / 1024
_ENOUGH_INODES = 1000


def free_space(facts: Facts) -> Iterator[Finding]:
    """Check each folder that is written to; report a file system once for all its folders."""
    seen: set[tuple[float, float]] = set()
    for purpose, enough_gib in _ENOUGH_GIB.items():
        storage = facts.storage.get(purpose)
        if storage is None:
            continue
        if storage.problem:
            yield _not_writable(facts, purpose, storage)
            continue
        system = (storage.size_gib, storage.free_gib)
        if storage.free_gib < enough_gib and system not in seen:
            seen.add(system)
            yield _low(facts, purpose, storage)
        if storage.free_inodes is not None and storage.free_inodes < _ENOUGH_INODES:
            yield warning(
                "inodes-low",
                Phrase(
                    (
                        "only {count} more files can be created on the file system of {folder} "
                        "({purpose}), however much space is left"
                    ),
                    count=storage.free_inodes,
                    folder=storage.folder,
                    purpose=Phrase(purpose),
                ),
                str(storage.folder),
                "remove small files there, or choose another folder",
            )


def _not_writable(facts: Facts, purpose: str, storage: Storage) -> Finding:
    """Report a folder that cannot be written: an error for results, a warning for logs."""
    level = error if purpose == "output" and purpose in facts.named_folders else warning
    return level(
        "folder-not-writable",
        Phrase(
            "{folder} ({purpose}) cannot be written: {problem}",
            folder=storage.folder,
            purpose=Phrase(purpose),
            problem=storage.problem,
        ),
        str(storage.folder),
        "choose another folder with --log-dir" if purpose == "logs" else "choose a folder on a writable disk",
    )


def _low(facts: Facts, purpose: str, storage: Storage) -> Finding:
    certain = purpose == "output" and purpose in facts.named_folders and storage.free_gib < _NOTHING_GIB
    level = error if certain else warning
    return level(
        "disk-low",
        Phrase(
            "only {free} of {size} are free on the file system of {folder} ({purpose})",
            free=_size(storage.free_gib),
            size=_size(storage.size_gib),
            folder=storage.folder,
            purpose=Phrase(purpose),
        ),
        str(storage.folder),
        "free some space, or choose a folder on another disk",
    )


def _size(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"
