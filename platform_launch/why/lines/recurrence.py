"""Finds where the lines that a log begins with come again: there another run writes into the same file."""

from __future__ import annotations

import re

_LINES = 3
# Of short lines the same three come by chance.
_LEAST_LETTERS = 40
# What comes again and again in one run: progress, and the reports of failures.
_OF_ONE_RUN = re.compile(rb"\b(?:step|epoch|iter(?:ation)?|batch|loss|its?|file|traceback|warn\w*)s?\b")


class Head:
    """The first lines of one log, by their shapes (letters and blanks), unless such lines come often."""

    def __init__(self) -> None:
        self._shapes: list[bytes] | None = None  # not learned yet; empty where there are none to look for

    def again(self, shapes: list[bytes]) -> frozenset[int]:
        """Return the lines of the next block, by their index, with which the first ones come again."""
        at = 0
        if self._shapes is None:
            first = _filled(shapes, 0)
            self._shapes = [shapes[index] for index in first]
            if not _are_telling(self._shapes):
                self.forget()
                return frozenset()
            at = first[-1] + 1
        found = set[int]()
        while self._shapes:
            try:
                at = shapes.index(self._shapes[0], at)
            except ValueError:
                break
            if [shapes[index] for index in _filled(shapes, at)] == self._shapes:
                found.add(at)
            at += 1
        return frozenset(found)

    def forget(self) -> None:
        """Look for them no more."""
        self._shapes = []


def _filled(shapes: list[bytes], at: int) -> list[int]:
    """Return the first lines from one on that hold a letter."""
    filled: list[int] = []
    while at < len(shapes) and len(filled) < _LINES:
        if not shapes[at].isspace() and shapes[at]:
            filled.append(at)
        at += 1
    return filled


def _are_telling(shapes: list[bytes]) -> bool:
    letters = sum(len(shape.replace(b" ", b"")) for shape in shapes)
    apart = len(set(shapes)) == _LINES
    return apart and letters >= _LEAST_LETTERS and not any(map(_OF_ONE_RUN.search, shapes))
