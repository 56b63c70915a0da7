"""Finds the lines of a log that may matter, in constant memory and at the speed of a few C passes.

Python cannot look at every line of a gigabyte in seconds, but training logs say the same things over and
over. So each block of the log is squeezed to lower-case letters and spaces in one pass, and what is left of
a line is its shape: "step loss psnr db gpu gb stepssec". A shape seen before costs a look in a set; so does
a word seen before, in a shape that is new. Only new words are searched for what failures are told with.
Nothing is lost by this: the stems hold letters only, so a line holds one where its shape does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

_BLOCK_BYTES = 1 << 20
_UNBROKEN_BYTES = 1 << 16
_PIECE_BYTES = 8192
_OVERLAP_BYTES = 256
_LOOKBACK_BYTES = 8192
_KNOWN_SHAPES = 20_000
_KNOWN_WORDS = 50_000
_DISMISSALS = 20

# Each line that a signature matches holds one of these (a test asks every example in signatures.yaml).
_STEMS = """
    abort addr afinet alloc already ancdata argument arguments assert broken cannot cancel cause channels
    child clients closed collective communicator conflict connect corrupt couldnt cublas cuda cudnn cxxabi
    deadline denied driver dumped duplicate enospc errno error evict exception exhausted exit expected fail
    fatal finite found glibc heartbeat hostfile illegal imex import initialized insufficient interface
    interrupt invalid kernel kill libcudnn libibverbs mismatch missing mnnvl must ninja nvml offline
    option ordinal pickling panic permitted preempt quota readonly reduction refused requeue resolve retrieved
    reset resource route segmentation shared sighup signal sigabrt sigbus sigill sigint sigkill sigquit
    sigsegv sigterm sigusr statedict timeout traceback truncated unable unavailable unhandled unreachable
    unrecognized walltime watchdog
""".split()  # noqa: SIM905 - a hundred words read best as text
_WHOLE_WORDS = """
    bus cant detected ecc ended ending eof extensions finished inf lost memory minimum module nan oom pipe
    ready same space stale terminate terminated timed use using warn xid
""".split()  # noqa: SIM905
_TELLING = re.compile(f"{'|'.join(_STEMS)}|^(?:{'|'.join(_WHOLE_WORDS)})$".encode(), re.MULTILINE)

_KEPT = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \r\n"
_DROPPED = bytes(set(range(256)) - set(_KEPT))
_SQUEEZE = bytes.maketrans(b"\rABCDEFGHIJKLMNOPQRSTUVWXYZ", b"\nabcdefghijklmnopqrstuvwxyz")


class Readable(Protocol):
    """A file object that is open for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""


@dataclass(frozen=True)
class RawLine:
    """A line as it is in the log, without its end; ``number`` counts from 1 as an editor does."""

    number: int
    data: bytes


class Vocabulary:
    """Remembers which shapes and words of a log are dull; what it remembers is bounded."""

    def __init__(self) -> None:
        self._dull_shapes: set[bytes] = set()
        self._dull_words: set[bytes] = set()
        self._dismissed: Counter[bytes] = Counter()

    def promising(self, shapes: list[bytes]) -> set[bytes]:
        """Return the shapes that hold a telling word."""
        novel = set(shapes) - self._dull_shapes
        if not novel:
            return novel
        words = set(b" ".join(novel).split(b" ")) - self._dull_words
        telling = {word for word in words if _TELLING.search(word)} if _tells(words) else set()
        self._dull_words |= words - telling
        found = {shape for shape in novel if any(word in shape for word in telling)} if telling else set()
        self._dull_shapes |= novel - found
        if len(self._dull_shapes) > _KNOWN_SHAPES:
            self._dull_shapes.clear()
        if len(self._dull_words) > _KNOWN_WORDS:
            self._dull_words.clear()
        return found

    def dismiss(self, shape: bytes) -> None:
        """Take note that a line of this shape meant nothing; after some of them the shape is dull."""
        self._dismissed[shape] += 1
        if self._dismissed[shape] >= _DISMISSALS:
            self._dull_shapes.add(shape)
        if len(self._dismissed) > _KNOWN_SHAPES:
            self._dismissed.clear()


class Scanner:
    """Walks through one log. Set ``everything`` to get each line that follows, not only promising ones."""

    def __init__(self, stream: Readable | Iterable[bytes]) -> None:
        self.everything = False
        self.lines_read = 0
        self._stream = stream
        self._vocabulary = Vocabulary()
        self._before = b""
        self._segments: list[bytes] = []
        self._shapes: list[bytes] = []
        self._index = 0

    def lines(self) -> Iterator[RawLine]:
        """Yield the lines that may matter. A carriage return ends a line too, but does not count as one."""
        for block in self._blocks():
            self._shapes = squeeze(block).split(b"\n")
            promising = self._vocabulary.promising(self._shapes)
            if promising or self.everything:
                self._segments = block.replace(b"\r", b"\n").split(b"\n")
                yield from self._lines_of(promising, _numbers(block, self.lines_read + 1))
                self._segments = []
            self.lines_read += block.count(b"\n")
            self._before = block[-_LOOKBACK_BYTES:]

    def dismiss(self) -> None:
        """Say that the current line meant nothing: many more like it need not be given out."""
        self._vocabulary.dismiss(self._shapes[self._index])

    def preceding(self, count: int) -> list[bytes]:
        """Return up to ``count`` segments before the current line, nearest first, from 8 KiB at least."""
        here = self._segments[max(0, self._index - count) : self._index]
        if len(here) < count:
            earlier = self._before.replace(b"\r", b"\n").split(b"\n")[:-1]
            here = earlier[-(count - len(here)) :] + here
        return here[::-1]

    def _lines_of(self, promising: set[bytes], numbers: list[int]) -> Iterator[RawLine]:
        for index, shape in enumerate(self._shapes):
            if not (self.everything or shape in promising):
                continue
            self._index = index
            data = self._segments[index]
            if len(data) <= _PIECE_BYTES:
                if data:
                    yield RawLine(numbers[index], data)
                continue
            for start in range(0, len(data), _PIECE_BYTES - _OVERLAP_BYTES):
                piece = data[start : start + _PIECE_BYTES]
                if _tells(set(squeeze(piece).split())):
                    yield RawLine(numbers[index], piece)

    def _blocks(self) -> Iterator[bytes]:
        """Yield pieces of about 1 MiB that end where a line ends, unless none does for 64 KiB."""
        rest = b""
        for data in self._chunks():
            data = rest + data
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if len(data) - end > _UNBROKEN_BYTES:
                end = len(data)
            rest = data[end:]
            if end:
                yield data[:end]
        if rest:
            yield rest

    def _chunks(self) -> Iterator[bytes]:
        if not isinstance(self._stream, Iterable) or hasattr(self._stream, "read"):
            stream = cast("Readable", self._stream)
            while data := stream.read(_BLOCK_BYTES):
                yield data
            return
        held: list[bytes] = []
        size = 0
        for line in self._stream:
            held.append(line)
            size += len(line)
            if size >= _BLOCK_BYTES:
                yield b"".join(held)
                held, size = [], 0
        yield b"".join(held)


def squeeze(data: bytes) -> bytes:
    """Return the shapes of lines: their letters in lower case, and their spaces."""
    return data.translate(_SQUEEZE, _DROPPED)


def _tells(words: set[bytes]) -> bool:
    return _TELLING.search(b"\n".join(words)) is not None


def _numbers(block: bytes, first: int) -> list[int]:
    """Return the line number of each segment between line feeds and carriage returns."""
    lines = block.split(b"\n")
    if b"\r" not in block:
        return list(range(first, first + len(lines)))
    return [number for number, line in enumerate(lines, first) for _ in range(line.count(b"\r") + 1)]
