"""Skips what is dull in a log of gigabytes, at the speed of the system's ``grep``.

Python needs some ten nanoseconds for a byte of a log, and grep two. So of a big file only its beginning, its
end and the neighbourhoods of telling words are read here; grep finds those in between. Where there is no
GNU grep (BusyBox, macOS), or it fails, everything is read as it is from a stream.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

# A line of gigabytes must not take the machine's memory: grep holds lines whole.
_MOST_MEMORY_BYTES = 512 << 20
# What stands more often than this in a piece, and than once in so many bytes of it, is common in a log.
_FEW = 3
_COMMON_BYTES = 256 << 10


@dataclass(frozen=True)
class Hit:
    """A telling word: the byte it begins at, and its line, which counts from 0 where the search began."""

    offset: int
    line: int


class SieveError(Exception):
    """grep cannot go on; the rest must be read otherwise."""


@cache
def available() -> bool:
    """Tell whether there is a grep with the options that are needed, and ``wc``."""
    grep = shutil.which("grep")
    if grep is None or shutil.which("wc") is None:
        return False
    done = subprocess.run([grep, "--version"], capture_output=True, check=False)
    return b"GNU grep" in done.stdout


def hits(
    file: BinaryIO, begin: int, words: Sequence[str], whole: Sequence[str]
) -> Generator[Hit, None, None]:
    """Yield where words stand in a file from a line's begin on; of ``whole`` only those that stand alone.

    Raises SieveError. Close the generator to end the search.
    """
    command = ["grep", "-a", "-n", "-b", "-o", "-i", "-E", "\n".join(patterns(words, whole))]
    with Path(file.name).open("rb") as source:
        os.lseek(source.fileno(), begin, os.SEEK_SET)
        process = subprocess.Popen(
            command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_PLAIN
        )
    assert process.stdout is not None
    with suppress(OSError):
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    try:
        for said in process.stdout:
            number, offset, _ = said.split(b":", 2)
            yield Hit(begin + int(offset), int(number) - 1)
        if process.wait() not in (0, 1):
            raise SieveError(f"grep ended with exit code {process.returncode}")
    except ValueError as error:
        raise SieveError(f"grep said something else: {error}") from error
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def patterns(words: Sequence[str], whole: Sequence[str]) -> list[str]:
    """Return the regular expressions, as grep and Python read them, that are searched without case."""
    return [*words, *(rf"\b{word}\b" for word in whole), _CODES]


def count_lines(file: BinaryIO, begin: int) -> int:
    """Return how many lines end between a place and the end of a file. Raises SieveError."""
    with Path(file.name).open("rb") as source:
        os.lseek(source.fileno(), begin, os.SEEK_SET)
        done = subprocess.run(["wc", "-l"], stdin=source, capture_output=True, check=False, env=_PLAIN)
    try:
        return int(done.stdout)
    except ValueError as error:
        raise SieveError("wc cannot count the lines") from error


def common(words: Sequence[str], whole: Sequence[str], shapes: Sequence[bytes]) -> set[str]:
    """Return the words that many lines hold. ``shapes`` are those of a piece of the log, in small letters."""
    counts = Counter(b"\n".join(shapes).replace(b" ", b"\n").split(b"\n"))
    limit = max(_FEW, sum(map(len, shapes)) // _COMMON_BYTES)
    search = re.compile("|".join(words).encode())
    found = Counter({word: counts[word.encode()] for word in whole})
    for text, count in counts.items():
        for word in {match.decode() for match in search.findall(text)}:
            found[word] += count
    return {word for word, count in found.items() if count > limit}


# The error codes of Ascend, EI0006 for instance: a digit ends no word.
_CODES = r"\be[cfhijlz][0-9]"
# Bytes as they are, whatever the user's language: that is ten times as fast.
_PLAIN = {"LC_ALL": "C", "PATH": os.defpath}
