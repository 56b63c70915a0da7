"""How many files and sockets may be open, and which processes have one open, as far as this one may see."""

from __future__ import annotations

import resource
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def allow_many() -> int:
    """Let this process open as many as its hard limit says, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def holders(wanted: set[str]) -> dict[str, list[int]]:
    """Map each open target of ``wanted`` (a path, ``socket:[INODE]``) to the processes that hold it.

    Other users' processes are seen by root alone, those of other containers by nobody in this one.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for process in Path("/proc").iterdir() if wanted else ():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            for target in {_target(descriptor) for descriptor in (process / "fd").iterdir()} & wanted:
                found[target].append(int(process.name))
    return dict(found)


def _target(descriptor: Path) -> str:
    with suppress(OSError):  # closed meanwhile
        return str(descriptor.readlink())
    return ""
