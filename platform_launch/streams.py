"""The standard streams of our processes, even if they are closed or were replaced."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import BinaryIO


def input_bytes() -> BinaryIO:
    """Return standard input as bytes, also if a program has replaced ``sys.stdin`` by a text."""
    return getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())


def ensure(*, of_helper: bool = False) -> None:
    """Make sure that the streams in ``sys`` can be used; usable ones of a calling program stay.

    An image's sitecustomize may have put objects there that only write, or nothing; Python sets None for a
    closed descriptor. ``of_helper``: standard input is the parent's pipe, whatever replaced it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if hasattr(getattr(sys, name), "buffer" if of_helper and name == "stdin" else "isatty"):
            continue
        own = getattr(sys, f"__{name}__")
        if own is None:
            with suppress(OSError):  # a root without /dev
                own = open(os.devnull, "w" if number else "r", encoding="utf-8")  # noqa: PTH123, SIM115
                os.set_inheritable(own.fileno(), True)
        setattr(sys, name, own)
