"""Finds the lines of a log that may matter, in constant memory and at the speed of a few C passes.

Python cannot look at every line of a gigabyte in seconds, but training logs say the same things over and
over. So each block of the log is squeezed to lower-case letters and spaces in one pass, and what is left of
a line is its shape: "step loss psnr db gpu gb stepssec". A shape seen before costs a look in a set; so does
a word seen before, in a shape that is new. Only new words are searched for what failures are told with.
Nothing is lost by this: the stems hold letters only, so a line holds one where its shape does.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast, runtime_checkable

from platform_launch.why import sieve

_BLOCK_BYTES = 1 << 20
_UNBROKEN_BYTES = 1 << 16
_PIECE_BYTES = 8192
_OVERLAP_BYTES = 256
_LOOKBACK_BYTES = 8192
_KNOWN_SHAPES = 20_000
_KNOWN_WORDS = 50_000
_DISMISSALS = 20
# After so many lines that were given out in all, less is given of each shape, and words of many shapes tell
# less.
_STAGES = (4_000, 12_000, 1 << 62)
_LINES_OF_A_SHAPE = (5000, 200, 10)
_SHAPES_OF_A_WORD = (1000, 200, 50)
# The end of a log, where failures are told, is read line by line whatever came before.
_TAIL_BYTES = 1 << 17
# A file of this size is sieved. So much is read whole before, and again where telling words become many;
# around each telling word so much as a report of a failure may take.
_BIG_BYTES = 64 << 20
_STRETCH_BYTES = 1 << 20
# A word tells less from one block to the next, so those of a big file are small.
_SMALL_BLOCK_BYTES = 1 << 17
_AROUND_BYTES = 1 << 13
# Telling words are many where so much was read around them, and more than this part of all.
_DENSE_BYTES = 1 << 20
_DENSE = 16

# Each line that a signature matches holds one of these (a test asks every example in signatures.yaml).
STEMS = """
    abort addr afinet alloc already amdgpu ancdata apikey argument assert authenticity available backoff
    badzip barrier bootstrapcc broken cancel cannot cause certificate channels child clients closed collective
    communicator completion conflict connect corrupt couldnt crash credential cublas cuda cudnn cusparse
    cxxabi deadline denied deserializ divisible driver dumped duplicate econn edac ehost emptydir enet
    enospc ephemeral epipe errno error etime evict exceed exception exhausted exit expected expir fail
    fatal finite forbidden found gated glibc globalrank hccl heartbeat hostfile ibvwc identification illegal
    imagepull imex import inactive incarnation inconsistent initialized insufficient interface interrupt
    jaxworker invalid kernel kill libibverbs locked lossinf lossnan lost lustre memlimit mismatch
    missing mlx mnnvl mountnfs munge must netcc neth ninja nodenotready nranks nvrm nvidiacontainer nvml nvrtc
    offline ompi oomreaper option ordinal outofmemory panic permitted pickling pluginload pmix preempt
    pressure pullaccess quota ratelimit rdzvendpoint readonly reduction refused remapp requeue reset
    resolve resource retrieved retrying route runlimit segfault segmentation shared shutdown shutting
    sigabrt sigbus sighup sigill sigint signal sigquit sigsegv sigterm sigusr slowdown socketcc socketh
    stalled statedict subset supported symbol taint termadmin termination termowner throttl timeout toomany
    traceback trainingfinished truncated unable unauthor undefined unhandled unknown unreachable recognized
    vendor walltime watchdog worldsize
""".split()  # noqa: SIM905 - a hundred words read best as text
WHOLE_WORDS = """
    activate bus cant conda dead deleted detected died down ecc ef eh ei ej el ended ending eof exit
    extensions ez file finished flag full hnp inf link locks lost many mce memory minimum module nan nfs npu
    oom orte outside pipe port prte ready registered same see slots space stale such terminate terminated
    timed unhealthy use using wandb warn xid
""".split()  # noqa: SIM905
_TELLING = re.compile(f"{'|'.join(STEMS)}|^(?:{'|'.join(WHOLE_WORDS)})$".encode(), re.MULTILINE)

_KEPT = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \r\n"
_DROPPED = bytes(set(range(256)) - set(_KEPT))
_SQUEEZE = bytes.maketrans(b"\rABCDEFGHIJKLMNOPQRSTUVWXYZ", b"\nabcdefghijklmnopqrstuvwxyz")


@runtime_checkable
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
    """Remembers which shapes and words of a log are dull, and how much was given out of each kind.

    All it remembers is bounded, and so is what it gives out: of one shape some thousand lines, of shapes
    that only a worn word makes telling none, and less of each the more was given already. A loader that logs
    errors by the million, each worded differently, costs no more than it must.
    """

    def __init__(self) -> None:
        self._dull_shapes: set[bytes] = set()
        self._dull_words: set[bytes] = set()
        self._telling_words: set[bytes] = set()
        self._dismissed: Counter[bytes] = Counter()
        self._given: Counter[bytes] = Counter()
        self._worn_words: set[bytes] = set()
        self._shapes_with: Counter[bytes] = Counter()
        self._total = 0
        self._stage = 0
        self.exhausted: set[bytes] = set()
        self.skipped = False

    def promising(self, shapes: list[bytes]) -> set[bytes]:
        """Return the shapes that hold a telling word."""
        novel = set(shapes) - self._dull_shapes
        if not novel:
            return novel
        words = set(b" ".join(novel).split(b" ")) - self._dull_words
        fresh = words - self._telling_words
        if fresh and _tells(fresh):
            self._telling_words |= {word for word in fresh if _TELLING.search(word)}
        telling = words & self._telling_words
        self._dull_words |= words - telling
        found = self._telling_shapes(novel, telling - self._worn_words) if telling else set()
        if len(novel) * 2 < len(shapes):  # else nearly each line is new, and remembering them is no use
            self._dull_shapes |= novel - found
        if len(self._dull_shapes) > _KNOWN_SHAPES:
            self._dull_shapes.clear()
        if len(self._dull_words) > _KNOWN_WORDS:
            self._dull_words.clear()
        if len(self._telling_words) > _KNOWN_WORDS:
            self._telling_words.clear()
            self._worn_words.clear()
            self._shapes_with.clear()
        return found

    def _telling_shapes(self, novel: set[bytes], telling: set[bytes]) -> set[bytes]:
        """Return the shapes with a telling word; a word that very many shapes held tells nothing any more."""
        if not telling:
            self.skipped = True
            return set()
        found = set()
        for shape in novel:
            held = telling.intersection(shape.split(b" "))
            if held:
                found.add(shape)
                self._shapes_with.update(held)
        limit = _SHAPES_OF_A_WORD[self._stage]
        self._worn_words |= {word for word in telling if self._shapes_with[word] > limit}
        return found

    def give(self, shape: bytes) -> bool:
        """Count a line that is given out; return False if its shape had enough of them."""
        count = self._given[shape] = self._given[shape] + 1
        if count > _LINES_OF_A_SHAPE[self._stage]:
            self._dull_shapes.add(shape)
            self.exhausted.add(shape)
            self.skipped = True
            return False
        self._total += 1
        if self._total > _STAGES[self._stage]:
            self._stage += 1
        if len(self._given) > _KNOWN_SHAPES:
            self._given.clear()
            self.exhausted.clear()
        return True

    def dismiss(self, shape: bytes) -> bool:
        """Take note that a line of this shape meant nothing; return True if there were enough of them."""
        self._dismissed[shape] += 1
        dull = self._dismissed[shape] >= _DISMISSALS
        if dull:
            self._dull_shapes.add(shape)
        if len(self._dismissed) > _KNOWN_SHAPES:
            self._dismissed.clear()
        return dull


class Scanner:
    """Walks through one log. Set ``everything`` to get each line that follows, not only promising ones.

    ``left_out`` are the messages that fill the log, by how they begin: of these most lines are not read.
    ``worn`` are the words of :mod:`sieve` that fill it: lines with no rarer one are not read.
    """

    def __init__(self, stream: Readable | Iterable[bytes]) -> None:
        self.everything = False
        self.lines_read = 0
        self.left_out: set[bytes] = set()
        self.worn: set[str] = set()
        self._stream = stream
        self._vocabulary = Vocabulary()
        self._before = b""
        self._segments: list[bytes] = []
        self._shapes: list[bytes] = []
        self._promising: set[bytes] = set()
        self._index = 0

    def lines(self) -> Iterator[RawLine]:
        """Yield the lines that may matter. A carriage return ends a line too, but does not count as one."""
        for block, is_tail in self._pieces():
            if is_tail:
                self._vocabulary = Vocabulary()
            self._shapes = squeeze(block).split(b"\n")
            self._promising = self._vocabulary.promising(self._shapes)
            if self._promising or self.everything:
                self._segments = block.replace(b"\r", b"\n").split(b"\n")
                yield from self._lines_of(_numbers(block, self.lines_read + 1))
                self._segments = []
            self.lines_read += block.count(b"\n")
            self._before = block[-_LOOKBACK_BYTES:]

    @property
    def skipped(self) -> bool:
        """Tell whether lines were left out because too many were like them."""
        return self._vocabulary.skipped

    def dismiss(self) -> None:
        """Say that the current line meant nothing: many more like it need not be given out."""
        shape = self._shapes[self._index]
        if self._vocabulary.dismiss(shape):
            self._promising.discard(shape)

    def following(self, count: int) -> list[bytes]:
        """Return up to ``count`` segments after the current line, as far as they are read already."""
        return self._segments[self._index + 1 : self._index + 1 + count]

    def preceding(self, count: int) -> list[bytes]:
        """Return up to ``count`` segments before the current line, nearest first, from 8 KiB at least."""
        here = self._segments[max(0, self._index - count) : self._index]
        if len(here) < count:
            earlier = self._before.replace(b"\r", b"\n").split(b"\n")[:-1]
            here = earlier[-(count - len(here)) :] + here
        return here[::-1]

    def _lines_of(self, numbers: list[int]) -> Iterator[RawLine]:
        exhausted = self._vocabulary.exhausted
        for index, shape in enumerate(self._shapes):
            if shape in exhausted or not (self.everything or shape in self._promising):
                continue
            if not self._vocabulary.give(shape):
                self._promising.discard(shape)
                continue
            self._index = index
            data = self._segments[index]
            if len(data) <= _PIECE_BYTES:
                if data:
                    yield RawLine(numbers[index], data)
                continue
            for start in range(0, len(data), _PIECE_BYTES - _OVERLAP_BYTES):
                piece = data[start : start + _PIECE_BYTES]
                if _tells_at_all(piece):
                    yield RawLine(numbers[index], piece)

    def _pieces(self) -> Iterator[tuple[bytes, bool]]:
        """Yield what is to be read, and whether it is the log's end."""
        file = getattr(self._stream, "plain", None)
        if file is None or os.fstat(file.fileno()).st_size < _BIG_BYTES or not sieve.available():
            return self._with_tail()
        return self._sieved(file)

    def _sieved(self, file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
        """Yield the beginning of a big file, the neighbourhoods of telling words, and its end.

        Where telling words become many, a stretch is read whole again, after which they tell less.
        """
        size = os.fstat(file.fileno()).st_size
        end, at, stretch = _next_line(file, size - _BLOCK_BYTES), 0, _STRETCH_BYTES
        heads = list[bytes]()
        while at < end:
            stop = min(at + stretch, end)
            while at < stop:
                block = _lines_at(file, at, _SMALL_BLOCK_BYTES, end)
                at += len(block)
                yield block, False
            if at >= end:
                break
            heads = self._filling(block, heads)
            begin, first, read, counts = at, self.lines_read, 0, Counter[str]()
            search = sieve.hits(file, begin, _wanted(self.worn), heads)
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
                    while at < end and (at < hit.offset + _AROUND_BYTES or self.everything):
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
                stretch = size
            finally:
                search.close()
        tail = _next_line(file, size - _TAIL_BYTES)
        while at < size:
            block = _lines_at(file, at, _SMALL_BLOCK_BYTES, size if at >= tail else tail)
            yield block, at >= tail
            at += len(block)

    def _jump(self, file: BinaryIO, at: int, hit: int, line: int) -> int:
        """Skip what is before a hit, but for some lines that may belong to it; return where to read on."""
        data = os.pread(file.fileno(), hit - max(at, hit - _LOOKBACK_BYTES), max(at, hit - _LOOKBACK_BYTES))
        cut = 0 if hit - len(data) == at else data.find(b"\n") + 1
        begin = hit - len(data) + cut
        return self._skip_to(file, begin, line - data.count(b"\n", cut)) if begin > at else at

    def _skip_to(self, file: BinaryIO, at: int, lines_read: int) -> int:
        self.lines_read = lines_read
        self._before = os.pread(file.fileno(), min(at, _LOOKBACK_BYTES), max(0, at - _LOOKBACK_BYTES))
        return at

    def _filling(self, block: bytes, heads: list[bytes]) -> list[bytes]:
        """Find the words and the messages that fill the log, to search for them no more; return these."""
        lines = block.split(b"\n")
        if filling := sieve.heads(lines, _tells_at_all):
            heads = list(dict.fromkeys([*filling, *heads]))[: sieve.MOST_HEADS]
        else:
            heads = []
        rest = [line for line in lines if not any(head in line for head in heads)]
        self.worn |= sieve.common(STEMS, WHOLE_WORDS, squeeze(b"\n".join(rest)))
        self.left_out |= set(heads)
        self._vocabulary.skipped |= bool(self.worn or heads)
        return heads

    def _with_tail(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the blocks, the last one in two parts: what comes before the log's end, and the end."""
        held = b""
        for block in self._blocks():
            if held:
                yield held, False
            held = block
        cut = max(held.rfind(b"\n", 0, max(0, len(held) - _TAIL_BYTES)) + 1, 0)
        if held[:cut]:
            yield held[:cut], False
        if held[cut:]:
            yield held[cut:], True

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


def _next_line(file: BinaryIO, at: int) -> int:
    """Return where the first line after a place begins; the place itself if no line ends near it."""
    return at + os.pread(file.fileno(), _UNBROKEN_BYTES, at).find(b"\n") + 1


def _lines_at(file: BinaryIO, at: int, size: int, end: int) -> bytes:
    """Return about so many bytes from a line's begin, up to the end of a line, unless none ends for long."""
    data = os.pread(file.fileno(), min(size, end - at), at)
    if at + len(data) < end and not data.endswith(b"\n"):
        more = os.pread(file.fileno(), min(_UNBROKEN_BYTES, end - at - len(data)), at + len(data))
        data += more[: more.find(b"\n") + 1] or more
    return data


def squeeze(data: bytes) -> bytes:
    """Return the shapes of lines: their letters in lower case, and their spaces."""
    return data.translate(_SQUEEZE, _DROPPED)


def _tells_at_all(text: bytes) -> bool:
    return _tells(set(squeeze(text).split()))


def _wanted(worn: set[str]) -> list[str]:
    return sieve.patterns([s for s in STEMS if s not in worn], [w for w in WHOLE_WORDS if w not in worn])


def _tells(words: set[bytes]) -> bool:
    return _TELLING.search(b"\n".join(words)) is not None


def _numbers(block: bytes, first: int) -> list[int]:
    """Return the line number of each segment between line feeds and carriage returns."""
    lines = block.split(b"\n")
    if b"\r" not in block:
        return list(range(first, first + len(lines)))
    return [number for number, line in enumerate(lines, first) for _ in range(line.count(b"\r") + 1)]
