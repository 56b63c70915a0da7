"""The standard streams of a process of ours, whatever it was started without and whatever replaced them."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import BinaryIO


def input_bytes() -> BinaryIO:
    """Return standard input to read bytes from, also where a program has put a text of its own there."""
    return getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())


def ensure(*, of_helper: bool = False) -> None:
    """Give ``sys`` streams that can be used; what a program that calls us has put there stays.

    An image's sitecustomize may have put objects there that only write, or nothing; of a descriptor that is
    closed Python makes None. ``of_helper``: standard input is its parent's pipe, whatever is in its place.
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
