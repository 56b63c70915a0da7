"""Finds where the lines that a log begins with come again: there another run writes into the same file."""

from __future__ import annotations

import re
from itertools import islice, takewhile

_LINES = 3
# Of short lines the same three come by chance.
_LEAST_LETTERS = 40
# What stands above a run's own first lines may not come again: a shell's trace, what one log is quoted with.
_MOST_HEADS = 8
# What comes again and again in one run.
_OF_ONE_RUN = re.compile(rb"\b(?:step|epoch|iter(?:ation)?|batch|loss|its?|warn\w*)s?\b")
_FAILURE = re.compile(rb"traceback most recent|file \S{1,200} line|error|exception")


class Heads:
    """Some lines one after the other, at the beginning of one log, by their shapes (letters and blanks)."""

    def __init__(self) -> None:
        self._heads: list[list[bytes]] | None = None  # not learned yet

    def again(self, shapes: list[bytes]) -> frozenset[int]:
        """Return the lines of the next block, by index, with which some of the first ones come again."""
        if self._heads is not None:
            return frozenset(place for head in self._heads for place in _places(head, shapes, 0))
        first = [(_shapes_from(shapes, at), at) for at in _beginning(shapes)]
        telling = [(head, at) for head, at in first if _is_telling(head)]
        self._heads = [head for head, _ in telling]
        return frozenset(place for head, at in telling for place in _places(head, shapes, at + 1))

    def forget(self, shapes: list[bytes], at: int) -> None:
        """Look no more for those that come again with a line of a block."""
        again = _shapes_from(shapes, at)
        self._heads = [head for head in self._heads or () if head != again]


def _beginning(shapes: list[bytes]) -> list[int]:
    """Return the first lines of the first block that are of no failure and no progress."""
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
    """Return the first shapes from one on that hold a letter."""
    return list(islice((shape for shape in islice(shapes, at, None) if _letters(shape)), _LINES))


def _letters(shape: bytes) -> int:
    return len(shape) - shape.count(b" ")


def _is_telling(head: list[bytes]) -> bool:
    apart = len(set(head)) == _LINES
    return apart and sum(map(_letters, head)) >= _LEAST_LETTERS and not any(map(_OF_ONE_RUN.search, head))
