"""Finds the lines of a block that have a level or a time, so that the others need not be parsed.

Nearly no line of a job has either. Searching a whole block costs a tenth of parsing each line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from platform_launch.why.lines.scan import Readable

_BLOCK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
_NEAR_BYTES = 1 << 12  # if most lines have a date, these last bytes have one
_PRINTABLE = bytes(range(32, 127)) + b"\n"
_ODD = re.compile(rb"[^\n -~]")
# Words of a line whose level is above INFO, and how it begins if its place shows the level.
# An indented line has the level of the line before.
_WORDS = (
    *(b"Error", b"Exception", b"Interrupt", b"Exit", b"Failure", b"Traceback (most recent call last)"),
    *(b"ERROR", b"CRITICAL", b"FATAL", b"WARN", b"Warning:"),
)
_NODE, _RANK = rb"\[node \d{1,6}\]", rb"\[(?:rank|default|trainer)\d{1,7}\]:"
_SPACE = rb"(?: |(?! ))"  # belongs to the text before it, so that it does not count as an indent
_PREFIX = rb"\n(?:" + _NODE + _SPACE + rb")?(?:" + _RANK + _SPACE + rb")?"
_LABELS = "error: |hint: |错误：|提示：".encode()
_LEVEL = rb"[ \t]|" + _LABELS + rb"|\[?[EFW]\d{4} |\[?\d\d:\d\d:\d\d|\[(?:INFO|SUCCESS|WARN|ERROR)\]"
_DATE = rb"[\[(]?\d{4}[-/]|\[?[ID]\d{4} "
_HAS_LEVEL = re.compile(_PREFIX + rb"(?:" + _LEVEL + rb")")
_HAS_DATE = re.compile(_PREFIX + rb"(?:" + _DATE + rb")")
_HAS_LEVEL_OR_DATE = re.compile(_PREFIX + rb"(?:" + _LEVEL + rb"|" + _DATE + rb")")


def line_blocks(stream: Readable) -> Iterator[bytes]:
    """Yield a stream in blocks of whole lines, without the last line end; endless lines come in pieces."""
    held = b""
    while data := stream.read(_BLOCK_BYTES):
        block, end, rest = data.rpartition(b"\n")
        if end:
            yield held + block
            held = b""
        held += rest
        if len(held) > _LONGEST_LINE:
            yield held
            held = b""
    if held:
        yield held


def line_starts(block: bytes, *, dates: bool) -> list[int]:
    """Return where the lines with a level begin, in order; with ``dates`` also those with a date."""
    pattern = _HAS_LEVEL_OR_DATE if dates else _HAS_LEVEL
    starts = {found.start() for found in pattern.finditer(b"\n" + block)}
    for word in _WORDS:
        at = block.find(word)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(word, end) if end >= 0 else -1
    if block.translate(None, _PRINTABLE):
        starts.update(block.rfind(b"\n", 0, found.start()) + 1 for found in _ODD.finditer(block))
    return sorted(starts)


def last_dated(lines: bytes) -> bytes | None:
    """Return the last of some lines that begins with a date; None if none does."""
    near = lines.rfind(b"\n", 0, max(0, len(lines) - _NEAR_BYTES)) + 1
    for begin in dict.fromkeys((near, 0)):
        start = None
        for found in _HAS_DATE.finditer(b"\n" + lines[begin:]):
            start = begin + found.start()
        if start is not None:
            return lines[start:].split(b"\n", 1)[0]
    return None
