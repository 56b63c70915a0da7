"""Regular expressions that are tried only on texts which hold the letters they cannot do without.

Hundreds of patterns searched one by one cost a millisecond a line. Nearly all of them hold a run of plain
characters; looking for that first is a thousand times cheaper, and a pattern is compiled when it is needed.
Letters are looked for in lower case, since half of the patterns leave open in which they stand.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

# Each pattern with its literal, those that need a gram, and those that need none.
Index = tuple[list[tuple[str, str]], dict[int, list[int]], list[int]]

_REPEATS = ("?", "*", "+", "{")
_TELLING_CHARACTERS = 4
# What a pattern may span. Most take a time that grows with the square of what they search, a few the cube.
_STRETCH = 2048
# What rules over its place in a pattern: escaped characters, classes, groups and alternatives.
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|[()|]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:i?:|P<\w+>))?(?!\?)")
_PLAIN = re.compile(r"[^\\\[().^$?*+{|]+(?![?*+{])")
# Behind a backslash: classes, places, earlier groups and controls.
_NO_PLAIN = "dDwWsSbBAZ0123456789afnrtvxuU"


class Pattern:
    """One alternative of a regular expression, and the ``literal`` that each text it matches holds.

    The literal is in lower case, the text in any.
    """

    __slots__ = ("_compiled", "_source", "literal")

    def __init__(self, source: str, literal: str) -> None:
        self.literal = literal
        self._source = source
        self._compiled: re.Pattern[str] | None = None

    def search(self, text: str) -> re.Match[str] | None:
        """Search a text that holds :attr:`literal` in any case, stretch by stretch."""
        if self._compiled is None:
            self._compiled = re.compile(self._source)
        for start in range(0, max(1, len(text) - _STRETCH // 2), _STRETCH // 2):
            if found := self._compiled.search(text, start, start + _STRETCH):
                return found
        return None


class Guarded:
    """A regular expression that is tried only on texts which hold what one of its alternatives needs."""

    def __init__(self, source: str, *, any_case: bool = False) -> None:
        """Raise ValueError for a pattern with an alternative that needs no telling run of characters."""
        self._search = re.compile(source, re.IGNORECASE if any_case else 0).search
        self._literals = list(dict.fromkeys(longest_literal(branch) for branch in branches(source)))
        if min(map(len, self._literals)) < _TELLING_CHARACTERS - 1:
            raise ValueError(f"an alternative needs too little: {self._literals}")

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Search a part of a text, as a compiled pattern does."""
        held = text.lower()
        for literal in self._literals:
            if literal in held:
                return self._search(text, start, end)
        return None


class PatternSet:
    """Several patterns; finds those that can match a text, by four letters in a row that each needs."""

    def __init__(self, index: Index) -> None:
        literals, self._by_gram, self._always = index
        self.patterns = [Pattern(source, literal) for source, literal in literals]
        self._needed = frozenset(self._by_gram)

    def candidates(self, text: str) -> list[int]:
        """Return the indices of the patterns that are worth searching in a text, in order."""
        held = text.lower()
        found = self._needed & _grams(held)
        indices = [*self._always, *(index for gram in found for index in self._by_gram[gram])]
        return sorted(index for index in indices if self.patterns[index].literal in held)


def index_of(sources: Iterable[str]) -> Index:
    """Return what a set of these patterns finds them by: that takes long, and marshal can hold it."""
    literals = [(source, longest_literal(source)) for source in sources]
    counts = Counter(gram for _, literal in literals for gram in _grams(literal))
    by_gram: dict[int, list[int]] = {}
    always: list[int] = []
    for index, (_, literal) in enumerate(literals):
        grams = _grams(literal)
        if grams:
            by_gram.setdefault(min(grams, key=counts.__getitem__), []).append(index)
        else:
            always.append(index)
    return literals, by_gram, always


def branches(source: str) -> list[str]:
    """Return the alternatives of a regular expression, in order, each with plain characters if it has any."""
    return [branch for outer in _branches(source) for branch in _expanded(outer)]


@lru_cache(maxsize=8)  # several sets look at the same line
def _grams(text: str) -> frozenset[int]:
    """Return each four letters in a row, as a number: that is several times as fast as slicing."""
    data = text.encode("ascii", "replace")
    shifted = (data[at : len(data) - (len(data) - at) % 4] for at in range(min(4, len(data))))
    return frozenset[int]().union(*(memoryview(letters).cast("I") for letters in shifted))


@lru_cache(maxsize=4096)  # asked for once to part a pattern, and once for each part
def longest_literal(source: str) -> str:
    """Return the longest run of plain characters that every match of a pattern without alternatives holds.

    It is in lower case, whatever the pattern asks for.
    """
    runs, run, index = [""], "", 0
    while index < len(source):
        if found := _PLAIN.match(source, index):
            run, index = run + found[0], found.end()
            continue
        sign, width, plain = source[index], 1, source[index]
        if sign == "\\":
            width, plain = 2, "" if source[index + 1] in _NO_PLAIN else source[index + 1]
        elif sign == "[":
            width = _end_of_group(source, index) - index
            either = source[index + 1 : index + width - 1].lower()
            plain = either[0] if len(either) == 2 and either[0] == either[1] else ""
        elif sign == "(":
            width, plain = _end_of_group(source, index) - index, ""
            opening, after = _opening(source, index), source[index + width : index + width + 1]
            if opening and after not in _REPEATS:
                inside = source[index + len(opening) : index + width - 1]
                runs += [longest_literal(inside)] if len(_branches(inside)) == 1 else []
        elif sign in ".^$":
            plain = ""
        index += width
        repeated = source[index : index + 1]
        if repeated in _REPEATS:
            kept = plain if repeated == "+" else ""
            runs.append(run + kept)
            run = ""
            index = source.index("}", index) + 1 if repeated == "{" else index + 1
            index += source[index : index + 1] == "?"
        elif plain:
            run += plain
        else:
            runs.append(run)
            run = ""
    return max((*runs, run), key=len).lower()


def _branches(source: str) -> list[str]:
    """Split a pattern at its outermost alternatives."""
    branches, begin, depth = [], 0, 0
    for part in _PARTS.finditer(source) if "|" in source else ():
        depth += (part[0] == "(") - (part[0] == ")")
        if part[0] == "|" and not depth:
            branches.append(source[begin : part.start()])
            begin = part.end()
    return [*branches, source[begin:]]


def _expanded(branch: str) -> list[str]:
    """Write a pattern's first group of alternatives out where it holds no plain characters beside."""
    if len(longest_literal(branch)) >= _TELLING_CHARACTERS:
        return [branch]
    passed = 0
    for part in _PARTS.finditer(branch):
        index = part.start()
        if part[0] != "(" or index < passed:
            continue
        opening, end = _opening(branch, index), _end_of_group(branch, index)
        alternatives = _branches(branch[index + len(opening) : end - 1])
        if not opening or branch[end : end + 1] in _REPEATS:
            passed = end
        elif len(alternatives) > 1:
            before, closing = (opening, ")") if opening != "(?:" else ("", "")
            return [
                one
                for inner in alternatives
                for one in _expanded(f"{branch[:index]}{before}{inner}{closing}{branch[end:]}")
            ]
    return [branch]


def _opening(source: str, index: int) -> str:
    """Return what opens a group of which a match holds one alternative; nothing for all other groups."""
    found = _GROUP.match(source, index)
    return found[0] if found else ""


def _end_of_group(source: str, start: int) -> int:
    """Return where a group ends, or a class."""
    depth = 0
    for part in _PARTS.finditer(source, start):
        depth += (part[0] == "(") - (part[0] == ")")
        if not depth:
            return part.end()
    raise ValueError(f"a group does not end: {source[start:]}")
