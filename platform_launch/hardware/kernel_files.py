"""Files in which the kernel tells of this machine, below /proc and /sys: what cannot be read says nothing."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """Return a file's stripped text, empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def entries(folder: Path) -> list[str]:
    """Return what lies in a folder."""
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def fields(path: Path) -> dict[str, str]:
    """Read lines of ``name: value``."""
    pairs = (line.partition(":") for line in text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def memory_bytes(proc_root: Path, field: str) -> int | None:
    """Return a field of /proc/meminfo; None where the kernel does not tell."""
    words = fields(proc_root / "meminfo").get(field, "").split()
    return int(words[0]) * 1024 if words else None  # the kernel's "kB" are KiB
