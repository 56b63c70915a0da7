"""Sizes of memory, as lines and answers write them."""

from __future__ import annotations

_UNITS = {"": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def amount(text: str) -> float:
    """Return a number, or the bytes of a size of PyTorch's (``1.50 GiB``); zero for what is neither."""
    number, _, unit = text.partition(" ")
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        return 0.0
