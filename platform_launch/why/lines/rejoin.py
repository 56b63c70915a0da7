"""Puts lines together again that a terminal cut at its width, as text copied out of one has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import BinaryIO

from platform_launch.why.lines.line import MOVED_UP
from platform_launch.why.lines.pasted import undressed
from platform_launch.why.lines.rewrap import Width, rewrapped, width_of
from platform_launch.why.lines.scan import Readable

_LARGEST = 1 << 20
_WIDTHS = range(60, 401)
_FEWEST_CUTS = 3
_SHARE, _LESSER_SHARE = 2 / 3, 1 / 2
_USUAL_WIDTHS = frozenset((80, 100, 120, 132, 160, 200))
_GOES_ON = re.compile(r" ?[a-z_,.;:)'\"\]]| \S|[0-9a-f]{8}")
# What begins a line of its own.
_BEGINS = re.compile(
    r'Traceback \(|\s+File "|\[rank\d|[\w.-]{1,40}: (?:error|warning|task)\b|\[?\d{4}-\d\d-\d\d[ T]'
    r"|s(?:run|lurmstepd): |\w*(?:Error|Exception): |(?:bash|kubectl|mpiexec|mpirun|ssh|sudo|torchrun): "
)
# An apostrophe, which is no quote: couldn't, the user's.
_APOSTROPHE = re.compile(r"(?<=[A-Za-z]{2})'(?=(?:s|t|re|ve|ll|d|m)\b)")
_PAIRS = (("'", "'"), ('"', '"'), ("(", ")"), ("[", "]"), ("<", ">"), ("{", "}"))
# A console wraps a message between words, and leaves the one space at the end of the line; more of them are
# the indent of another process.
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): .{23,}\S |.{0,60}\*{3} (?:JOB|STEP) [^*]{1,200} ")
_MOST_WRAPPED = 6
_FIRST_WORD = re.compile(r"\W*(\w+)")


class RejoinedLog:
    """A log as it was before the terminal cut it, if it is small and was cut.

    A line keeps its number: what follows from it is moved up to it and leaves a blank line. ``width`` is one
    at which lines may still be wrapped.
    """

    width = Width()

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._begun = False

    @property
    def plain(self) -> BinaryIO | None:
        """The file itself, where its bytes are the text."""
        plain: BinaryIO | None = getattr(self._stream, "plain", None)
        return plain

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""
        data = self._stream.read(size)
        if self._begun or len(data) >= min(size, _LARGEST):
            self._begun = True
            return data
        self._begun = True
        bare = undressed(data) if data else b""
        self.width = width_of(bare.split(b"\n"))
        return b"\n".join(_whole(bare)) if bare else bare


def rejoined(stream: Readable | Iterable[bytes]) -> Readable | Iterable[bytes]:
    """Return a stream of the same log with its lines put together."""
    return RejoinedLog(stream) if isinstance(stream, Readable) else stream


def unwrapped(text: str, following: Iterable[str]) -> str:
    """Return an exception's line with the rest of its message, which a console wrapped below it."""
    if not _WRAPPED.fullmatch(text):
        return text
    inset = text[: len(text) - len(text.lstrip(" "))]
    for _, whole in zip(range(_MOST_WRAPPED), following, strict=False):
        below = whole.removeprefix(inset)
        if not below.strip() or below[0] in " \t":
            break
        text += below
        if not below.endswith(" "):
            break
    return text


def _whole(data: bytes) -> list[bytes]:
    """Return a log's lines as they were before a mail or a terminal broke them."""
    lines = data.split(b"\n")
    again = rewrapped(lines)
    return again if again is not lines else rewrapped(_rejoined(data).split(b"\n"))


def _rejoined(data: bytes) -> bytes:
    lines = data.split(b"\n")
    texts = [line.decode(errors="replace") for line in lines]
    width = max(map(len, texts))
    if width not in _WIDTHS:
        return data
    padded = sum(len(text) == width and text.endswith("  ") for text in texts) * 2 > len(texts)
    cut = [
        len(text) == width and not text.endswith("  ") and _BEGINS.match(below) is None
        for text, below in pairwise(texts)
    ]
    pairs = list(dict.fromkeys(pair for pair, is_cut in zip(pairwise(texts), cut, strict=True) if is_cut))
    going_on = [_goes_on(text, below) or _tears(text, below) for text, below in pairs]
    # The same line over and over is as long each time, whatever the terminal's width.
    different = len({text for text, _ in pairs})
    share = _LESSER_SHARE if different > _FEWEST_CUTS else _SHARE
    many = different >= _FEWEST_CUTS and sum(going_on) >= share * len(pairs)
    sure = width in _USUAL_WIDTHS or any(_tears(text, below) for text, below in pairs)
    if many or (pairs and all(going_on) and sure):
        for index in range(len(lines) - 2, -1, -1):
            if cut[index]:
                lines[index], lines[index + 1] = lines[index] + lines[index + 1], MOVED_UP.encode()
    elif not padded:
        return data
    return b"\n".join(line.rstrip() if padded else line for line in lines)


def _goes_on(text: str, below: str) -> bool:
    """Tell whether a line looks like the rest of the one above, and not like one more of its kind."""
    first, second = _FIRST_WORD.match(text), _FIRST_WORD.match(below)
    same = first is not None and second is not None and _kind(first[1]) == _kind(second[1])
    return not same and _GOES_ON.match(below) is not None


def _tears(text: str, below: str) -> bool:
    """Tell whether quotes or brackets that a line opens are closed in the one below."""
    text, below = _APOSTROPHE.sub("", text), _APOSTROPHE.sub("", below)
    for opening, closing in _PAIRS:
        if opening == closing and text.count(opening) % 2 and below.count(opening) % 2:
            return True
        if text.count(opening) > text.count(closing) and below.count(closing) > below.count(opening):
            return True
    return False


def _kind(word: str) -> str:
    """Return a word without its digits: gn01 and gn02 begin lines of one kind, and so do two times of day."""
    return re.sub(r"\d+", "", word)
