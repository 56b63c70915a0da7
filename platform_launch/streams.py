"""The standard streams of a process of ours, whatever it was started without and whatever replaced them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# Name → what is asked of it besides reading or writing.
_EXPECTED = {"stdin": ("isatty", "buffer"), "stdout": ("isatty",), "stderr": ("isatty",)}


def ensure() -> None:
    """Give ``sys`` streams that can be used.

    An image's sitecustomize may have put objects there that only write, or nothing; of a descriptor that is
    closed Python makes None.
    """
    for number, (name, expected) in enumerate(_EXPECTED.items()):
        if all(hasattr(getattr(sys, name), attribute) for attribute in expected):
            continue
        own = getattr(sys, f"__{name}__")
        if own is None:
            with suppress(OSError):  # a root without /dev
                own = open(os.devnull, "w" if number else "r", encoding="utf-8")  # noqa: PTH123, SIM115
                os.set_inheritable(own.fileno(), True)
        setattr(sys, name, own)
