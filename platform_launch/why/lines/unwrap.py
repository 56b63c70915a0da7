"""Lines that contain other lines: JSON of a container runtime or a log service, and tracebacks on one
line.
"""

from __future__ import annotations

import json
import re

_MESSAGES = ("log", "message", "msg", "textpayload", "text", "event", "body")
_DEEPEST = 3
_GRAVE = frozenset(("ERROR", "CRITICAL", "FATAL"))
_MILD = frozenset(("WARNING", "WARN", "INFO", "DEBUG", "TRACE"))
_MOST_RANKS = 10_000_000
# One line of a record that was printed on several, like torch's error file.
_FIELD = re.compile(rb'\s*("message": "(?:[^"\\]|\\.)*"),?\s*')
# If a progress bar or another process writes to the same terminal, lines are joined by spaces.
_GLUED = re.compile(
    rb"(?<=\S) {10,}(?=[\w.-]+:\d+:\d+ \[\d+\] |\[rank\d{1,7}\]: |\| +\d+/\d+ \["
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3} - )"
)
# What another process begins a line with, after the unfinished line of an exception's message.
_BEHIND_A_MESSAGE = re.compile(
    rb"(?<=[a-zA-Z0-9.)'\"!?\]}])(?=Traceback \(most recent call last\):|\[rank\d{1,5}\]:"
    rb"|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL):[a-zA-Z_][\w.]{0,60}:"
    rb"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\] ]|\[?[EWIF]\d{4} \d\d:\d\d:\d\d\.)"
    rb"|(?<=[.)'\"!?\]}])(?=[\w.-]{1,60}:\d{2,10}:\d{2,10} \[\d{1,3}\] NCCL )"
)
_RAISES = re.compile(
    rb"(?:\[?[\w.:-]{1,40}\]?:? ){0,2}(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): "
)
_BAR_ENDS = re.compile(rb"(%\|[^|]{0,200}\| *[\d.]+\w?/[\d.]+\w? \[[^]\r]{3,120}\])(?=[^\s\r|])")


def unwrap(data: bytes) -> list[bytes]:
    """Return the lines that a line holds: itself, in most cases."""
    if data[:1] == b"{" and data.rstrip()[-1:] == b"}":
        return _of_json(data)
    if b"\\n" in data and b"Traceback (most recent call last):\\n" in data:
        return data.replace(b"\\n", b"\n").replace(b'\\"', b'"').replace(b"\\'", b"'").split(b"\n")
    if found := _FIELD.fullmatch(data):
        return _of_json(b"{" + found[1] + b"}")
    if b"%|" in data and _BAR_ENDS.search(data):
        data = _BAR_ENDS.sub(rb"\1\n", data)
    if (b"Error: " in data or b"Exception: " in data) and _RAISES.match(data):
        data = _BEHIND_A_MESSAGE.sub(b"\n", data)
    if b"\n" in data:
        return data.split(b"\n")
    if b" " * 10 in data and _GLUED.search(data):
        return _GLUED.split(data.lstrip())
    return [data]


def _of_json(data: bytes) -> list[bytes]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return [data]
    text = _message(record, _DEEPEST)
    if not text:
        return [data]
    lines = text.rstrip("\n").split("\n")
    if isinstance(record, dict):
        prefix = _prefix(record, whole=len(lines) > 1 and not text.startswith("Traceback ("))
        lines = [f"{prefix}{line}" for line in lines]
    return [line.encode(errors="replace") for line in lines]


def _prefix(record: dict[str, object], *, whole: bool) -> str:
    """Return what a program's own logger adds to its message, in the form of a prefix.

    Not the severity of a log service, which may only mean the error output. A mild level on a ``whole``
    report of several lines means that its writer continued; a log collector gives each line its own level,
    and one that groups tracebacks does not say who reported them.
    """
    level, rank = str(record.get("level") or record.get("levelname")).upper(), record.get("rank")
    writer = f"[rank{rank}]: " if type(rank) is int and 0 <= rank < _MOST_RANKS else ""
    if whole and level in _MILD:
        return f"{writer}| INFO | "
    return f"{writer}| ERROR | " if level in _GRAVE else writer


def _message(record: object, depth: int) -> str:
    """Return the text in a record, which log services nest."""
    if isinstance(record, str):
        return record
    if not isinstance(record, dict) or not depth:
        return ""
    record = {**record, **{name.lower(): value for name, value in record.items()}}
    for name in _MESSAGES:
        if text := _message(record.get(name), depth - 1):
            trace = record.get("exc_info") or record.get("exception") or record.get("stack_trace")
            return f"{text}\n{trace}" if isinstance(trace, str) else text
    for name in ("jsonPayload", "record"):
        if text := _message(record.get(name), depth - 1):
            return text
    return ""
