"""Locks that a build of torch extensions left behind.

torch guards each build folder with a file called ``lock`` that it holds open while it compiles, and removes
afterwards (torch/utils/file_baton.py). After a kill the file stays, and each later run waits for it for ever.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.hardware.descriptors import holders


@dataclass(frozen=True)
class BuildLock:
    """``held`` tells whether a process that can be seen from here has the file open."""

    path: Path
    age_s: float
    held: bool


def locks(extensions: Path) -> tuple[BuildLock, ...]:
    """Return the locks in a TORCH_EXTENSIONS_DIR: ``<op>/lock``, or one folder deeper by Python and CUDA."""
    found: list[Path] = []
    with suppress(OSError):  # somebody else's
        found = sorted({*extensions.glob("*/lock"), *extensions.glob("*/*/lock")})
    if not found:
        return ()
    opened = holders({str(path.resolve()) for path in found})
    now_s = time.time()
    made = []
    for path in found:
        with suppress(OSError):  # released meanwhile
            made.append(BuildLock(path, now_s - path.stat().st_mtime, str(path.resolve()) in opened))
    return tuple(made)
