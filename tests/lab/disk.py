"""A small disk that really fills up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

from tests.lab.needs import Need
from tests.lab.waiting import LIMIT_S


@cache
def why_no_mount() -> str:
    """Return why no file system can be mounted here, empty when one can."""
    if os.geteuid() != 0:
        return "needs root to mount a file system"
    trial = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return f"no file system can be mounted here: {done.stderr.strip()}" if done.returncode else ""


requires_mount = Need("root that may mount a file system", why_no_mount).mark


@contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """Make a folder a disk of its own, with options of tmpfs, and take that away again."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], timeout=LIMIT_S, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=LIMIT_S, check=True)


def small_disk(folder: Path, size_mib: int) -> AbstractContextManager[Path]:
    """Make a folder a disk of so many MiB."""
    return disk(folder, f"size={size_mib}m,mode=700")
