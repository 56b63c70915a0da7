"""Another version of the package: one message has an additional field."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.rendezvous.cluster import ROOT

_BEFORE = "    echo_s: float = 0.0\n"


def other_build(folder: Path) -> Path:
    """Write it into a folder that Python can import from; return the folder."""
    shutil.copytree(
        ROOT / "platform_launch", folder / "platform_launch", ignore=shutil.ignore_patterns("__pycache__")
    )
    messages = folder / "platform_launch" / "rendezvous" / "protocol.py"
    text = messages.read_text()
    assert text.count(_BEFORE) == 1
    messages.write_text(text.replace(_BEFORE, f"{_BEFORE}    temperature: float = 0.0\n"))
    return folder
