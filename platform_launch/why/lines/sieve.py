"""Skips the irrelevant parts of a log of gigabytes, at the speed of the system's ``grep``.

Python needs some ten nanoseconds for a byte of a log, and grep two. So only the beginning, the end and the
surroundings of telling words of a big file are read here; grep finds these words. Leaving out messages that
fill a log costs grep a tenth of that, since it looks for a few fixed texts only. It searches for phrases if a
word alone would need bounds, which cost a quarter of its speed. Endless lines are broken for it
(:class:`BrokenLines`), since it keeps a whole line in memory, and a progress bar that is redrawn for days is
one line. Where there is no GNU grep (BusyBox, macOS), or it fails, everything is read as it is from a stream.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, BinaryIO

from platform_launch.why.lines.vocabulary import PHRASES, STEMS

# A line of gigabytes must not fill the machine's memory: grep keeps whole lines.
_MOST_MEMORY_BYTES = 48 << 20
LONGEST_BYTES = 1 << 16
_DATA_BYTES = 1 << 12
_CHUNK_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
# A word is common if it is in a piece more often than this, and more than once in so many bytes.
_FEW = 3
_COMMON_BYTES = 256 << 10
# If a search hits too often, words with more than this share of the hits are dropped.
_HITS_PER_WORD = 16
# Messages fill a log if so many of its lines contain one of their beginnings, and each at least so many.
_FILLED = 0.75
_FILLED_BY_ONE = 0.05
_LINES_TO_LEARN_FROM = 500
MOST_HEADS = 16
_LEAST_HEAD_BYTES = 12
_SHORT = 3
_FEWEST_LINES = 16
_HEAD_WITHIN_BYTES = 300
# Two to four words without a digit: the beginning of a message that is repeated for many things.
_HEAD = re.compile(rb"(?<![A-Za-z0-9])[A-Za-z]+(?:[^A-Za-z0-9]+[A-Za-z]+){1,3}(?![A-Za-z0-9])[^A-Za-z0-9]?")


@dataclass(frozen=True)
class Hit:
    """A telling word, by its pattern: its first byte, and its line, counted from 0."""

    offset: int
    line: int
    word: str


class SieveError(Exception):
    """grep failed; the rest must be read without it."""


@cache
def available() -> bool:
    """Return whether there is a grep with the needed options, and ``wc``."""
    grep = shutil.which("grep")
    if grep is None or shutil.which("wc") is None:
        return False
    done = subprocess.run([grep, "--version"], capture_output=True, check=False)
    return b"GNU grep" in done.stdout


def hits(
    file: BinaryIO, begin: int, wanted: Sequence[str], heads: Sequence[bytes] = (), *, broken: bool = False
) -> Generator[Hit, None, None]:
    """Yield the positions of the ``wanted`` patterns in a file, from the beginning of a line.

    Lines that hold one of ``heads`` are left out. ``broken`` is needed where a line is endless. Raises
    SieveError. Close the generator to end the search.
    """
    search = ["grep", "-a", "-i", "-E"]
    commands: list[list[str | bytes]] = [[*search, "-n", "-b", "-o", "\n".join(wanted)]]
    if heads:
        commands = [
            ["grep", "-a", "-n", "-b", "-v", "-F", b"\n".join(heads)],
            [*search, "\n".join(wanted)],
            [*search, "-b", "-o", "\n".join([_PLACE, *wanted])],
        ]
    processes: list[subprocess.Popen[bytes]] = []
    lines = BrokenLines(file, begin) if broken else None
    try:
        with lines.source if lines else Path(file.name).open("rb") as source:
            if not lines:
                os.lseek(source.fileno(), begin, os.SEEK_SET)
            processes += _pipeline(commands, source)
        found = processes[-1].stdout or ()
        for hit in _among_others(found) if heads else map(_hit, found):
            place = begin + hit.offset
            if not lines:
                yield replace(hit, offset=place, line=hit.line - 1)
            else:
                yield replace(hit, offset=place, line=lines.lines_before(hit.offset))
        for process in processes:
            if process.wait() not in (0, 1):
                raise SieveError(f"grep ended with exit code {process.returncode}")
    except ValueError as error:
        raise SieveError(f"unexpected output of grep: {error}") from error
    finally:
        for process in processes:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()
        if lines:
            lines.close()


def _pipeline(
    commands: Sequence[list[str | bytes]], source: IO[bytes] | None
) -> Iterator[subprocess.Popen[bytes]]:
    for command in commands:
        process = subprocess.Popen(
            command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_PLAIN
        )
        with suppress(OSError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
        if source is not None:
            source.close()  # else a command that ends early would leave the one before it waiting
        source = process.stdout
        yield process


def _hit(output: bytes) -> Hit:
    """Read ``line:place:word``."""
    line, offset, word = output.rstrip(b"\n").split(b":", 2)
    return Hit(int(offset), int(line), _pattern_of(word))


def _among_others(found: Iterable[bytes]) -> Iterator[Hit]:
    """Read the hits in lines that begin with ``line:place:``, with their positions in the searched text."""
    line = shift = 0
    for output in found:
        at, word = output.rstrip(b"\n").split(b":", 1)
        if place := _PLACE_READ.fullmatch(word):
            line = int(place[1])
            shift = int(place[2]) - int(at) - len(word)
        else:
            yield Hit(shift + int(at), line, _pattern_of(word))


def _pattern_of(word: bytes) -> str:
    """Return the pattern that found a text; the text itself if it is the pattern."""
    small = word.lower()
    return next((p for p, search in _VARIABLE.items() if search.fullmatch(small)), small.decode("latin-1"))


def patterns(worn: Set[str]) -> list[str]:
    """Return the regular expressions, valid for grep and Python, that are searched without case."""
    return [pattern for pattern in (*_STEMS, *PHRASES) if pattern not in worn]


def count_lines(file: BinaryIO, begin: int) -> int:
    """Return how many lines end between a place and the end of a file. Raises SieveError."""
    with Path(file.name).open("rb") as source:
        os.lseek(source.fileno(), begin, os.SEEK_SET)
        done = subprocess.run(["wc", "-l"], stdin=source, capture_output=True, check=False, env=_PLAIN)
    try:
        return int(done.stdout)
    except ValueError as error:
        raise SieveError("wc cannot count the lines") from error


def common(text: bytes) -> set[str]:
    """Return the patterns that are in many lines of a piece of the log."""
    limit = max(_FEW, len(text) // _COMMON_BYTES)
    small = text.lower()
    found = {pattern: small.count(pattern.encode()) for pattern in patterns(_VARIABLE.keys())}
    found |= {pattern: len(search.findall(small)) for pattern, search in _VARIABLE.items()}
    return {pattern for pattern, count in found.items() if count > limit}


def frequent(counts: Counter[str]) -> set[str]:
    """Return the words of most hits of a search."""
    limit = max(_FEW, sum(counts.values()) // _HITS_PER_WORD)
    return {word for word, count in counts.items() if count > limit}


def heads(lines: Sequence[bytes], is_telling: Callable[[bytes], bool]) -> list[bytes]:
    """Return the beginnings of the telling messages that fill a piece of a log; none if other lines are many,
    too.

    The rest of such a message is ignored: after thousands of them it shows nothing new.
    """
    sample = lines[:: max(1, len(lines) // _LINES_TO_LEARN_FROM)]
    counts: Counter[bytes] = Counter()
    telling: dict[bytes, bool] = {}
    for line in sample:
        for found in _HEAD.finditer(line, 0, _HEAD_WITHIN_BYTES):
            head = found[0]
            if head not in telling:
                telling[head] = len(head) >= _LEAST_HEAD_BYTES and is_telling(head)
            if telling[head]:
                counts[head] += 1
                break
    filling = [
        head for head, count in counts.most_common(MOST_HEADS) if count >= _FILLED_BY_ONE * len(sample)
    ]
    filled = sum(counts[head] for head in filling) >= _FILLED * max(len(sample), _FEWEST_LINES)
    return filling if filled else []


class BrokenLines:
    """Copies a file from a position on to :attr:`source`; each byte keeps its position.

    Carriage returns become line feeds, as does one blank in each 64 KiB without any. Data without a blank for
    4 KiB become blanks. The file stays open meanwhile.
    """

    def __init__(self, file: BinaryIO, begin: int) -> None:
        reading, self._writing = os.pipe()
        self.source: IO[bytes] = os.fdopen(reading, "rb")
        self._begin = begin
        self._lines = [0]
        self._file = file
        with suppress(OSError):  # a small one is only slower
            fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def lines_before(self, offset: int) -> int:
        """Return how many lines of the file end before a position that was copied, from the same start."""
        chunk, rest = divmod(offset, _CHUNK_BYTES)
        data = os.pread(self._file.fileno(), rest, self._begin + chunk * _CHUNK_BYTES)
        return self._lines[chunk] + data.count(b"\n")

    def close(self) -> None:
        """End it, after its reader has ended."""
        self.source.close()
        self._thread.join()

    def _write(self) -> None:
        at = self._begin
        with os.fdopen(self._writing, "wb", buffering=0) as pipe, suppress(BrokenPipeError):
            while data := os.pread(self._file.fileno(), _CHUNK_BYTES, at):
                at += len(data)
                self._lines.append(self._lines[-1] + data.count(b"\n"))
                left = memoryview(_broken(data))
                while left:
                    left = left[pipe.write(left) :]


def _broken(data: bytes) -> bytes:
    text = bytearray(data.replace(b"\r", b"\n"))
    ended = 0
    for start in range(0, len(text), _DATA_BYTES):
        end = min(start + _DATA_BYTES, len(text))
        blank = text.rfind(b" ", start, end)
        if text.find(b"\n", start, end) >= 0:
            ended = end
        elif blank < 0:
            text[start:end] = b" " * (end - start - 1) + b"\n"
            ended = end
        elif end - ended >= LONGEST_BYTES:
            text[blank] = ord("\n")
            ended = end
    return bytes(text)


_STEMS = [stem for stem in STEMS if len(stem) > _SHORT]
# Those that are not plain texts.
_VARIABLE = {phrase: re.compile(phrase.encode(), re.MULTILINE) for phrase in PHRASES if "[" in phrase}
# What grep -n -b puts before a line.
_PLACE = "^[0-9]+:[0-9]+:"
_PLACE_READ = re.compile(rb"(\d+):(\d+):")
# Plain bytes, whatever the user's language: ten times as fast.
_PLAIN = {"LC_ALL": "C", "PATH": os.defpath}
