"""A short name for a failure, equal when the failure is: for schedulers and loops that count repeats."""

from __future__ import annotations

import hashlib
import re

# What differs between two runs of the same failure: paths, addresses, hexadecimal numbers, numbers, units.
_VARYING = re.compile(
    r"(?:[A-Za-z]+://|~?/|\.{1,2}/)[^\s'\"`,;:)\]}>]*"
    r"|\b0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{4,})*\b"
    r"|[\w-]*\d[\w.:-]*(?:\s?[KMGT]?i?B\b)?"
)
_LENGTH = 16
_ESSENCE_CHARACTERS = 200


def fingerprint(kind: str, cause: str | None, exception: str = "", message: str = "") -> str:
    """Return the name of a failure: what it is called, the type of its exception, and what it says."""
    parts = (kind, cause or "", exception, essence(message))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_LENGTH]


def essence(text: str) -> str:
    """Return the first sentence of a message without what differs from run to run."""
    sentence = re.split(r"(?<=[a-z)])\. |\n", text, maxsplit=1)[0]
    return " ".join(_VARYING.sub("*", sentence).split())[:_ESSENCE_CHARACTERS]
