"""A line of a process's own, in the form of the launcher's: ``[INFO] text``."""

from __future__ import annotations

import os
from contextlib import suppress


def say(level: str, text: str) -> None:
    """Write one line on stderr, whole; nothing happens when nobody reads it any more."""
    flat = " ".join(text.splitlines())
    with suppress(OSError):
        os.write(2, f"[{level}] {flat}\n".encode(errors="replace"))
