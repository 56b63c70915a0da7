"""A small disk that really fills up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

requires_mount = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")


@contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[Path]:
    """Make a folder that is a disk of its own, and take it away again. Skips where it cannot."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=30, check=True)
