"""Finds the relevant lines of a log, in constant memory and at the speed of a few passes in C.

Python cannot look at every line of a gigabyte in seconds, but training logs repeat themselves. So each block
is reduced to the shapes of its lines in one pass, and known shapes are skipped (:mod:`vocabulary`); most of a
big log is not even read (:mod:`sieve`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from platform_launch.why.lines import sieve
from platform_launch.why.lines.recurrence import Heads
from platform_launch.why.lines.sieve import LONGEST_BYTES
from platform_launch.why.lines.vocabulary import Vocabulary, has_telling_word, squeeze

_BLOCK_BYTES = 1 << 20
_PIECE_BYTES = 8192
_OVERLAP_BYTES = 256
_LOOKBACK_BYTES = 8192
# The end of a log, which usually shows the failure, is read line by line in any case.
_TAIL_BYTES = 1 << 17
# Each line of its last part is passed on: there, a message without any word of failure may still be one.
_END_BYTES = 1 << 14
# A file of this size is sieved. So much is read whole before, and again where telling words become many, and
# at most where a report of a failure begins and does not end; else around each telling word so much as a
# report may take.
_BIG_BYTES = 64 << 20
_STRETCH_BYTES = 1 << 19
# A word's weight falls from block to block, so the blocks of a big file are small.
_SMALL_BLOCK_BYTES = 1 << 17
_AROUND_BYTES = 1 << 13
# Telling words are many where so much was read around them, and more than this part of all.
_DENSE_BYTES = 1 << 20
_DENSE = 16


class Readable(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""


@dataclass(frozen=True)
class RawLine:
    """A line as it is in the log, without its line end; ``number`` counts from 1, as in an editor."""

    number: int
    data: bytes


class Scanner:
    """Goes through one log. Set ``everything`` to get each following line, not only promising ones.

    ``number`` is that of the current line, at the end one more than the last. ``left_out`` holds the
    beginnings of messages that fill the log: most of these lines are not read. ``worn`` holds the words of
    :mod:`sieve` that fill it: lines without a rarer one are not read.
    """

    def __init__(self, stream: Readable) -> None:
        self.everything = False
        self.number = 0
        self.lines_read = 0
        self.left_out: set[bytes] = set()
        self.worn: set[str] = set()
        self._stream = stream
        self._vocabulary = Vocabulary()
        self._before = b""
        self._segments: list[bytes] = []
        self._shapes: list[bytes] = []
        self._promising: dict[bytes, frozenset[bytes]] = {}
        self._heads = Heads()
        self._repeated = frozenset[int]()
        self._index = 0
        self._shape = b""
        self._end = 0  # the segment in which the log's last part begins

    def lines(self) -> Iterator[RawLine]:
        """Yield the relevant lines. A carriage return ends a line, too, but is not counted."""
        for block, is_tail in self._pieces():
            if is_tail:
                self._vocabulary = Vocabulary()
            self._shapes = squeeze(block).split(b"\n")
            self._promising = self._vocabulary.promising(self._shapes)
            self._end = squeeze(block[:-_END_BYTES]).count(b"\n") if is_tail else len(self._shapes)
            self._repeated = self._heads.repeated(self._shapes)
            if self._promising or self._repeated or self.everything or is_tail:
                self._segments = block.replace(b"\r", b"\n").split(b"\n")
                yield from self._lines_of(_numbers(block, self.lines_read + 1))
                self._segments = []
            self.lines_read += block.count(b"\n")
            self._before = block[-_LOOKBACK_BYTES:]
        if self._before and not self._before.endswith(b"\n"):  # the last line counts even without a line end
            self._before += b"\n"
            self.lines_read += 1
        self.number = self.lines_read + 1

    @property
    def empty(self) -> bool:
        """Return whether the log was empty, after reading it."""
        return not self.lines_read and not self._before

    @property
    def skipped(self) -> bool:
        """Return whether lines were left out because there were too many alike."""
        return self._vocabulary.skipped

    def dismiss(self) -> None:
        """Mark the current line as irrelevant: of further lines like it, few are passed on."""
        if self._vocabulary.dismiss(self._shape):
            self._promising.pop(self._shape, None)

    @property
    def begins_again(self) -> bool:
        """Return whether the current line begins a repetition of the log's first lines."""
        return self._index in self._repeated

    def ignore_repetition(self) -> None:
        """Ignore such repetitions from now on: one run repeats these lines."""
        self._heads.forget(self._shapes, self._index)
        self._repeated = self._heads.repeated(self._shapes)

    @property
    def current(self) -> bytes:
        """The segment of the current line, none at the log's end."""
        return self._segments[self._index][:_PIECE_BYTES] if self._segments else b""

    def following(self, count: int) -> list[bytes]:
        """Return up to ``count`` segments after the current line, as far as they are read already."""
        below = self._segments[self._index + 1 : self._index + 1 + count]
        return [segment[:_PIECE_BYTES] for segment in below]

    def preceding(self, count: int) -> list[bytes]:
        """Return up to ``count`` segments before the current line, nearest first, from 8 KiB at least."""
        here = self._segments[max(0, self._index - count) : self._index]
        if len(here) < count:
            earlier = self._before.replace(b"\r", b"\n").split(b"\n")[:-1]
            here = earlier[-(count - len(here)) :] + here
        return [segment[:_PIECE_BYTES] for segment in reversed(here)]

    def _lines_of(self, numbers: list[int]) -> Iterator[RawLine]:
        promising, exhausted, none = self._promising, self._vocabulary.exhausted, frozenset[bytes]()
        for index, shape in enumerate(self._shapes):
            # In this order because most lines of a block are none of these.
            wanted = shape in promising or self.everything or index >= self._end or index in self._repeated
            if not wanted or shape in exhausted:
                continue
            self._index, self._shape, self.number = index, shape, numbers[index]
            data = self._segments[index]
            telling = none if self.everything else self._promising.get(shape, none)
            if len(data) > _PIECE_BYTES:
                yield from self._pieces_of(data)
            elif not self._vocabulary.admit(shape, telling):
                self._promising.pop(shape, None)
            elif data:
                yield RawLine(self.number, data)

    def _pieces_of(self, data: bytes) -> Iterator[RawLine]:
        """Yield the relevant parts of a long line; those without a blank are data."""
        for start in range(0, len(data), _PIECE_BYTES - _OVERLAP_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            if b" " in piece:
                self._shape = squeeze(piece)
                telling = self._vocabulary.promising([self._shape]).get(self._shape)
                if telling and self._vocabulary.admit(self._shape, telling):
                    yield RawLine(self.number, piece)

    def _pieces(self) -> Iterator[tuple[bytes, bool]]:
        """Yield what is to be read, and whether it is the log's end."""
        file = getattr(self._stream, "plain", None)
        if file is None or os.fstat(file.fileno()).st_size < _BIG_BYTES or not sieve.available():
            return self._with_tail()
        return self._sieved(file)

    def _sieved(self, file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
        """Yield the beginning of a big file, the neighbourhoods of telling words, and its end.

        If telling words become frequent, a part is read whole again; after that they have less weight.
        """
        size = os.fstat(file.fileno()).st_size
        end, at, stretch = _next_line(file, size - _BLOCK_BYTES), 0, _STRETCH_BYTES
        heads, broken = list[bytes](), False
        while at < end:
            stop = min(at + stretch, end)
            while at < stop:
                block = _lines_at(file, at, _SMALL_BLOCK_BYTES, end)
                at += len(block)
                yield block, False
            if at >= end:
                break
            broken = broken or max(map(len, block.split(b"\n"))) >= LONGEST_BYTES
            heads = self._filling(block.replace(b"\r", b"\n") if broken else block, heads)
            begin, first, read, counts = at, self.lines_read, 0, Counter[str]()
            search = sieve.hits(file, begin, sieve.patterns(self.worn), heads, broken=broken)
            try:
                for hit in search:
                    counts[hit.word] += 1
                    if end <= hit.offset < size:
                        above = os.pread(file.fileno(), hit.offset - end, end).count(b"\n")
                        at = self._skip_to(file, end, first + hit.line - above)
                        break
                    if not at <= hit.offset < end:
                        continue
                    at = self._jump(file, at, hit.offset, first + hit.line)
                    while at < min(end, hit.offset + (_STRETCH_BYTES if self.everything else _AROUND_BYTES)):
                        block = _lines_at(file, at, _AROUND_BYTES, end)
                        at, read = at + len(block), read + len(block)
                        yield block, False
                    if read > _DENSE_BYTES and read * _DENSE > at - begin:
                        self.worn |= sieve.frequent(counts)
                        break
                else:
                    after = sieve.count_lines(file, begin) - sieve.count_lines(file, end)
                    at = self._skip_to(file, end, first + after)
            except sieve.SieveError:
                stretch, broken = (size if broken else stretch), True
            finally:
                search.close()
        tail = _next_line(file, size - _TAIL_BYTES)
        while at < size:
            block = _lines_at(file, at, _SMALL_BLOCK_BYTES, size if at >= tail else tail)
            yield block, at >= tail
            at += len(block)

    def _jump(self, file: BinaryIO, at: int, hit: int, line: int) -> int:
        """Skip to a hit, except for some lines before it that may belong to it; return where to read on."""
        data = os.pread(file.fileno(), hit - max(at, hit - _LOOKBACK_BYTES), max(at, hit - _LOOKBACK_BYTES))
        cut = 0 if hit - len(data) == at else _first_end(data)
        begin = hit - len(data) + cut
        return self._skip_to(file, begin, line - data.count(b"\n", cut)) if begin > at else at

    def _skip_to(self, file: BinaryIO, at: int, lines_read: int) -> int:
        self.lines_read = lines_read
        self._before = os.pread(file.fileno(), min(at, _LOOKBACK_BYTES), max(0, at - _LOOKBACK_BYTES))
        return at

    def _filling(self, block: bytes, heads: list[bytes]) -> list[bytes]:
        """Find the words and messages that fill the log, so as to stop searching for them; return them."""
        lines = block.split(b"\n")
        if filling := sieve.heads(lines, has_telling_word):
            heads = list(dict.fromkeys([*filling, *heads]))[: sieve.MOST_HEADS]
        else:
            heads = []
        rest = [line for line in lines if not any(head in line for head in heads)]
        self.worn |= sieve.common(b"\n".join(rest))
        self.left_out |= set(heads)
        self._vocabulary.skipped |= bool(self.worn or heads)
        return heads

    def _with_tail(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the log in blocks, the last of which is its end."""
        held = b""
        for block in self._blocks():
            held += block
            before = max(0, len(held) - _TAIL_BYTES)
            cut = max(held.rfind(b"\n", 0, before), held.rfind(b"\r", 0, before)) + 1
            if not cut and before > LONGEST_BYTES:
                cut = before
            if cut:
                yield held[:cut], False
                held = held[cut:]
        if held:
            yield held, True

    def _blocks(self) -> Iterator[bytes]:
        """Yield pieces of about 1 MiB that end at a line end, unless there is none for 64 KiB."""
        rest = b""
        while data := self._stream.read(_BLOCK_BYTES):
            data = rest + data
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if len(data) - end > LONGEST_BYTES:
                end = len(data)
            rest = data[end:]
            if end:
                yield data[:end]
        if rest:
            yield rest


def _next_line(file: BinaryIO, at: int) -> int:
    """Return where the first line after a place begins; the place itself if no line ends near it."""
    return at + _first_end(os.pread(file.fileno(), LONGEST_BYTES, at))


def _lines_at(file: BinaryIO, at: int, size: int, end: int) -> bytes:
    """Return about so many bytes from the beginning of a line up to the end of one, unless that is too
    far.
    """
    data = os.pread(file.fileno(), min(size, end - at), at)
    if at + len(data) < end and not data.endswith(b"\n"):
        more = os.pread(file.fileno(), min(LONGEST_BYTES, end - at - len(data)), at + len(data))
        data += more[: _first_end(more)] or more
    return data


def _first_end(data: bytes) -> int:
    """Return where the first line ends, in an endless one the first redraw of a progress bar; 0 if there is
    none.
    """
    return data.find(b"\n") + 1 or data.find(b"\r") + 1


def _numbers(block: bytes, first: int) -> list[int]:
    """Return the line number of each segment between line feeds and carriage returns."""
    lines = block.split(b"\n")
    if b"\r" not in block:
        return list(range(first, first + len(lines)))
    return [number for number, line in enumerate(lines, first) for _ in range(line.count(b"\r") + 1)]
