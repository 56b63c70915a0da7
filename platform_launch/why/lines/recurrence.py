"""Finds where the first lines of a log are repeated: another run writes to the same file there."""

from __future__ import annotations

import re
from itertools import islice, takewhile

_LINES = 3
# Three short lines may be repeated by chance.
_LEAST_LETTERS = 40
# Lines above a run's own first lines, such as a shell's trace, may not be repeated.
_MOST_HEADS = 8
# Lines that one run repeats.
_OF_ONE_RUN = re.compile(rb"\b(?:step|epoch|iter(?:ation)?|batch|loss|its?|warn\w*)s?\b")
_FAILURE = re.compile(rb"traceback most recent|file \S{1,200} line|error|exception")


class Heads:
    """Groups of consecutive lines from the start of a log, as shapes (letters and blanks)."""

    def __init__(self) -> None:
        self._heads: list[list[bytes]] | None = None  # not learned yet

    def repeated(self, shapes: list[bytes]) -> frozenset[int]:
        """Return the indices of the lines in the next block that begin a repetition."""
        if self._heads is not None:
            return frozenset(place for head in self._heads for place in _places(head, shapes, 0))
        first = [(_shapes_from(shapes, at), at) for at in _beginning(shapes)]
        telling = [(head, at) for head, at in first if _is_telling(head)]
        self._heads = [head for head, _ in telling]
        return frozenset(place for head, at in telling for place in _places(head, shapes, at + 1))

    def forget(self, shapes: list[bytes], at: int) -> None:
        """Stop looking for the group that a line of this block begins: one run repeats it."""
        head = _shapes_from(shapes, at)
        self._heads = [one for one in self._heads or () if one != head]


def _beginning(shapes: list[bytes]) -> list[int]:
    """Return the first lines of the first block that show neither a failure nor progress."""
    above = takewhile(lambda one: not _FAILURE.search(one[1]), enumerate(shapes))
    plain = (at for at, shape in above if _letters(shape) and not _OF_ONE_RUN.search(shape))
    return list(islice(plain, _MOST_HEADS))


def _places(head: list[bytes], shapes: list[bytes], at: int) -> list[int]:
    places: list[int] = []
    while True:
        try:
            at = shapes.index(head[0], at)
        except ValueError:
            return places
        if _shapes_from(shapes, at) == head:
            places.append(at)
        at += 1


def _shapes_from(shapes: list[bytes], at: int) -> list[bytes]:
    """Return the next shapes with letters, from an index on."""
    return list(islice((shape for shape in islice(shapes, at, None) if _letters(shape)), _LINES))


def _letters(shape: bytes) -> int:
    return len(shape) - shape.count(b" ")


def _is_telling(head: list[bytes]) -> bool:
    differ = len(set(head)) == _LINES
    return differ and sum(map(_letters, head)) >= _LEAST_LETTERS and not any(map(_OF_ONE_RUN.search, head))
