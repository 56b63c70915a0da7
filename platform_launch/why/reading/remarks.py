"""What is said of a log as a whole: what of it was not read, and with which line it ends."""

from __future__ import annotations

from platform_launch.why.lines.line import parse, shown
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import Scanner
from platform_launch.why.note import Note, note

_LINES_OF_A_PAGE = 50


def not_read(name: str, scanner: Scanner) -> list[Note]:
    """Say what was not read."""
    left_out = scanner.left_out
    heads = ", ".join(f'"{shown(head.decode(errors="replace"))}"' for head in sorted(left_out))
    remarks = []
    if scanner.empty:
        remarks.append(note("empty", log=name))
    if heads:
        remarks.append(note("lines-left-out", log=name, heads=heads))
    if "traceback" in scanner.worn:
        remarks.append(note("tracebacks-left-out", log=name))
    return remarks


def last_line(name: str, scanner: Scanner, prefixes: Prefixes) -> list[Note]:
    """Quote the line that a log ends with, unless it ends with a page of empty ones."""
    for distance, data in enumerate(scanner.preceding(_LINES_OF_A_PAGE), 1):
        if data.strip():
            last = parse(scanner.number - distance, data, prefixes)
            return [note("ends-with", log=shown(name), line=last.number, text=last.shown)]
    return []
