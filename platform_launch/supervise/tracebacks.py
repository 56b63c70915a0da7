"""Shortens tracebacks on the screen; the log keeps every line.

    from torchrun or accelerate, because a rank failed    one line: the rank's own traceback matters
    from a rank, equal to that of another rank            one line for all such ranks
    any other                                             unchanged

A traceback is recognized by its shape: the header, frames, and the line that names the exception. torch puts
``[rank3]: `` before each line of an exception that ends a rank, so ranks that write at the same time can be
told apart. Before the process group exists, ranks write line by line into each other's tracebacks. If every
line then appears as often as the header, it is the same traceback that many times.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from platform_launch.events import Event, event
from platform_launch.hardware.numa import cpu_ranges
from platform_launch.supervise.text import without_escapes
from platform_launch.text import Phrase

_HEADER = b"Traceback (most recent call last):"
_RANK = re.compile(rb"\[rank(\d{1,7})\]: ")
_FRAME = re.compile(rb'  File "([^"]+)", line \d+')
_RAISED = re.compile(rb"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|\Z)")
_NUMBER = re.compile(rb"0x[0-9a-fA-F]+|\d+")
# What a launcher raises after a rank has failed, and the package that raises it.
_OF_A_RANK = (b"ChildFailedError", b"CalledProcessError")
_LAUNCHER = re.compile(rb"/(torch)/distributed/|/(accelerate)/commands/")
_RULE = re.compile(rb"=+\Z")  # torchrun's summary is between two such lines

# A traceback arrives at once. One that takes longer, or is larger, is shown unchanged.
_PATIENCE_S = 0.5
_MOST_BYTES = 64 * 1024
# Ranks that fail together do so within about a second.
_TOGETHER_S = 1.0
_MOST_KNOWN = 64


@dataclass
class _Open:
    """A traceback that has begun. ``text`` is what is shown; ``lines`` have no prefix, colours or rank.

    ``copies`` counts the headers, ``ended`` the lines that name an exception. ``package`` is the launcher
    that raised it because a rank failed, empty for any other traceback.
    """

    text: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    copies: int = 1
    ended: int = 0
    raised: bytes = b""
    package: str = ""
    in_summary: bool = False
    due: float = 0.0

    def add(self, whole: bytes, line: bytes) -> None:
        self.text.append(whole)
        self.lines.append(line)
        self.size += len(whole)
        self.due = time.monotonic() + _PATIENCE_S

    def once(self) -> _Open | None:
        """Return interleaved copies as one traceback; None if they are not the same."""
        of_all, seen, one = Counter(self.lines), Counter[bytes](), _Open()
        if any(count % self.copies for count in of_all.values()):
            return None
        for whole, line in zip(self.text, self.lines, strict=True):
            if seen[line] % self.copies == 0:
                one.add(whole, line)
            seen[line] += 1
        return one

    def end(self, raised: bytes) -> None:
        """Set the exception that was raised."""
        self.raised, self.ended = raised, self.ended + 1
        frames = [found[1] for line in self.lines if (found := _FRAME.match(line))]
        is_one = self.copies == 1 and raised in _OF_A_RANK
        found = _LAUNCHER.search(frames[-1]) if frames and is_one else None
        self.package = (found[1] or found[2]).decode() if found else ""


@dataclass
class _Repeats:
    """Tracebacks equal to the one of rank ``first``, which was shown; not reported yet."""

    first: int | None
    ranks: list[int] = field(default_factory=list)
    count: int = 0
    exact: bool = True


class TracebackFold:
    """Takes output with the launcher's prefix before each line, and returns what the screen shows.

    ``show`` formats an event as a line. Output without a traceback is not changed. ``many``: several
    processes write, so a repeated traceback without a rank may come from another process.
    """

    def __init__(self, prefix: str, show: Callable[[Event], bytes], *, many: bool = False) -> None:
        self._prefix = prefix.encode()
        self._show = show
        self._many = many
        self._open: dict[int | None, _Open] = {}
        self._latest: int | None = None  # the rank of the last line: torch writes empty lines without a rank
        self._known: dict[bytes, tuple[int | None, bytes]] = {}
        self._repeats: dict[bytes, _Repeats] = {}
        self._repeats_due = float("inf")
        self._tail = b""
        self._mid_line = False

    @property
    def due(self) -> float:
        """When :meth:`flush` must be called at the latest (time.monotonic())."""
        return min((one.due for one in self._open.values()), default=self._repeats_due)

    def feed(self, data: bytes) -> bytes:
        """Return what to show now."""
        if not self._open and _HEADER not in data:
            self._mid_line = data[-1:] != b"\n" if data else self._mid_line
            return data
        shown: list[bytes] = []
        *lines, tail = (self._tail + data).split(b"\n")
        if self._mid_line and lines:
            shown.append(lines.pop(0) + b"\n")
        for line in lines:
            self._line(line + b"\n", shown)
        if not tail:  # a rank writes it at once, so it is complete or in the middle
            shown += [self._closed(rank) for rank in self._ended_ranks()]
        self._tail = tail if self._open else b""
        self._mid_line = bool(tail) and not self._tail
        return b"".join(shown) + (b"" if self._open else tail)

    def flush(self) -> bytes:
        """Return what was held back for too long."""
        now, shown = time.monotonic(), []
        for rank, one in list(self._open.items()):
            if one.due <= now:
                shown.append(self._closed(rank))
        if self._repeats_due <= now:
            shown.append(self._name_repeats())
        return b"".join(shown) + self._freed_tail()

    def finish(self) -> bytes:
        """Return everything that is held back."""
        shown = [self._closed(rank) for rank in list(self._open)]
        return b"".join(shown) + self._name_repeats() + self._freed_tail()

    def _freed_tail(self) -> bytes:
        if self._open:
            return b""
        tail, self._tail = self._tail, b""
        self._mid_line = self._mid_line or bool(tail)
        return tail

    def _line(self, whole: bytes, shown: list[bytes]) -> None:
        """Add a line to an open traceback, or show it."""
        line = without_escapes(whole[:-1]).removeprefix(self._prefix)
        tag = _RANK.match(line)
        rank = int(tag[1]) if tag else None
        if tag is None and not line and self._latest in self._open:
            rank = self._latest
        line = line[tag.end() :] if tag else line
        self._latest = rank
        if rank is None:  # lines without a rank come after what ranks have written
            shown += [self._closed(one) for one in self._ended_ranks()]
        one = self._open.get(rank)
        if line == _HEADER and (one is None or (rank is None and not one.in_summary)):
            if one is not None and not self._many:
                shown.append(self._closed(rank))
            one = self._open.setdefault(rank, _Open(copies=0))
            one.copies, one.package = one.copies + 1, ""
            one.add(whole, line)
        elif one is None:
            shown.append(whole)
        elif not self._accepts(one, rank, whole, line):
            if one.raised:
                shown.append(self._closed(rank))
            shown.append(whole)
        elif one.size > _MOST_BYTES or (rank is None and self._is_whole(one)):
            shown.append(self._closed(rank))

    def _ended_ranks(self) -> list[int | None]:
        """Return the ranks whose traceback has reached the line of its exception."""
        return [rank for rank, one in self._open.items() if rank is not None and one.raised]

    def _accepts(self, one: _Open, rank: int | None, whole: bytes, line: bytes) -> bool:
        """Add a line to a traceback if it belongs there."""
        if rank is None and one.ended >= one.copies and not one.in_summary:
            if not _RULE.match(line):
                return False
            one.in_summary = True
        elif one.ended < one.copies and line[:1] != b" ":
            raised = _RAISED.match(line)
            if raised is not None:
                one.end(raised[1])
            elif rank is None:
                return False  # of another process that writes at the same time
        one.add(whole, line)
        return True

    def _is_whole(self, one: _Open) -> bool:
        if one.in_summary:
            rules = sum(_RULE.match(line) is not None for line in one.lines)
            return rules > 1
        # A launcher's exception may be followed by its summary.
        return one.ended >= one.copies and not one.package

    def _closed(self, rank: int | None) -> bytes:
        """Return what is shown of a complete traceback."""
        one = self._open.pop(rank)
        whole = b"".join(one.text)
        if package := one.package:
            folded = event(
                "traceback-folded", package=package, exception=one.raised.decode(), lines=len(one.lines)
            )
            return self._name_repeats() + self._show(folded)
        once = one.once() if one.raised and (self._many or rank is not None) else None
        if once is None:
            return whole
        lines = [line for line in once.lines if line]
        text = b"\n".join(lines)
        key = b"\n".join(line if line[:1] == b" " else _NUMBER.sub(b"#", line) for line in lines)
        key += b"" if rank is None else b" of a rank"
        is_new = key not in self._known
        first, its_text = self._known.setdefault(key, (rank, text))
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if rank is not None and first == rank:
            return whole
        if more := one.copies - is_new:
            repeats = self._repeats.setdefault(key, _Repeats(first))
            repeats.ranks += [] if rank is None else [rank]
            repeats.count += more
            repeats.exact = repeats.exact and text == its_text
            self._repeats_due = time.monotonic() + _TOGETHER_S
        return b"".join(once.text) if is_new else b""

    def _name_repeats(self) -> bytes:
        repeats, self._repeats, self._repeats_due = self._repeats, {}, float("inf")
        return b"".join(self._show(_repeated(one)) for one in repeats.values())


def _repeated(one: _Repeats) -> Event:
    values = {"difference": "" if one.exact else Phrase(", with other numbers"), "count": one.count}
    if one.first is None:
        return event("traceback-again", **values)
    return event("traceback-repeated", ranks=cpu_ranges(one.ranks), first=one.first, **values)
