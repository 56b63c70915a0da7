"""The package as another version of it: one message that travels has a field more."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.rendezvous.cluster import ROOT

_BEFORE = "    echo_s: float = 0.0\n"


def other_build(folder: Path) -> Path:
    """Put it into a folder, and return the folder, which Python can import from."""
    shutil.copytree(
        ROOT / "platform_launch", folder / "platform_launch", ignore=shutil.ignore_patterns("__pycache__")
    )
    messages = folder / "platform_launch" / "rendezvous" / "protocol.py"
    text = messages.read_text()
    assert text.count(_BEFORE) == 1
    messages.write_text(text.replace(_BEFORE, f"{_BEFORE}    temperature: float = 0.0\n"))
    return folder
