"""The syntax trees of the package, for tests that ask what all of its code has in common."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "platform_launch"


@cache
def trees() -> tuple[tuple[Path, ast.Module], ...]:
    """Return the path and the tree of each module."""
    paths = (path for path in sorted(PACKAGE.rglob("*.py")) if "_project" not in path.parts)
    gc.disable()  # half a million nodes, all of which stay: it would take four fifths of the time
    try:
        return tuple((path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths)
    finally:
        gc.freeze()
        gc.enable()
