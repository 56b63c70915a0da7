"""Reads the kernel's files below /proc and /sys; an unreadable file counts as empty."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """Return a file's stripped text, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def entries(folder: Path) -> list[str]:
    """Return the entries of a folder; none if it cannot be read."""
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def fields(path: Path) -> dict[str, str]:
    """Read lines of ``name: value``."""
    pairs = (line.partition(":") for line in text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def memory_bytes(proc_root: Path, field: str) -> int | None:
    """Return a field of /proc/meminfo; None if it is missing."""
    words = fields(proc_root / "meminfo").get(field, "").split()
    return int(words[0]) * 1024 if words else None  # the kernel's "kB" are KiB
