"""Regular expressions that are tried only on texts which contain the letters they need.

Hundreds of patterns searched one by one cost a millisecond a line. Nearly all of them hold a run of plain
characters; looking for that first is a thousand times cheaper. A pattern is compiled at its first use.
Letters are compared in lower case, since half of the patterns ignore case.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_parse as parser

# Each pattern with the texts it needs, those found by four letters in a row, and those that need none.
Index = tuple[list[tuple[str, list[str]]], dict[int, list[int]], list[int]]

# The longest text that a pattern searches. Most take quadratic time, a few cubic.
_STRETCH = 2048
_MOST_ALTERNATIVES = 64


class Guarded:
    """A regular expression that is tried only on texts which hold one of the plain texts it ``needs``."""

    __slots__ = ("_compiled", "_source", "needs")

    def __init__(self, source: str, needs: Sequence[str] = (), *, any_case: bool = False) -> None:
        """``needs`` are what :func:`needed` returns, if that is already known."""
        self._source = f"(?i:{source})" if any_case else source
        self._compiled: re.Pattern[str] | None = None
        self.needs = needs or needed(source)

    def search(self, text: str, end: int = sys.maxsize) -> re.Match[str] | None:
        """Search the beginning of a text, piece by piece."""
        held = text.lower()
        if not any(needed in held for needed in self.needs):
            return None
        if self._compiled is None:
            self._compiled = re.compile(self._source)
        end = min(end, len(text))
        for start in range(0, max(1, end - _STRETCH // 2), _STRETCH // 2):
            if found := self._compiled.search(text, start, min(end, start + _STRETCH)):
                return found
        return None


class PatternSet:
    """Several patterns; tries those that can match a text, by four letters in a row that each needs."""

    def __init__(self, index: Index) -> None:
        patterns, self._by_gram, self._always = index
        self._patterns = [Guarded(source, needs) for source, needs in patterns]
        self._grams = frozenset(self._by_gram)

    def matches(self, text: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield the patterns that a text matches, by their numbers, in order."""
        numbers = set(self._always)
        for gram in self._grams & _grams(text.lower()):
            numbers.update(self._by_gram[gram])
        for number in sorted(numbers):
            if found := self._patterns[number].search(text):
                yield number, found


def index_of(sources: Iterable[str]) -> Index:
    """Return the index of a set of these patterns. Building it takes long; marshal can store it."""
    patterns = [(source, needed(source)) for source in sources]
    counts = Counter(gram for _, needs in patterns for text in needs for gram in _grams(text))
    by_gram: dict[int, list[int]] = {}
    always: list[int] = []
    for number, (_, needs) in enumerate(patterns):
        grams = [min(_grams(text), key=counts.__getitem__, default=None) for text in needs]
        if None in grams:
            always.append(number)
        else:
            for gram in {gram for gram in grams if gram is not None}:
                by_gram.setdefault(gram, []).append(number)
    return patterns, by_gram, always


def needed(source: str) -> list[str]:
    """Return plain texts, in lower case, of which each text that a pattern matches holds one in any case."""
    return sorted({text.lower() for text in _needed(parser.parse(source))})


def _needed(items: Any) -> list[str]:
    """Return the same for a parsed pattern: of all it needs, the alternatives whose shortest is longest."""
    found, run = [[""]], ""
    for kind, value in items:
        name, alternatives, plain = str(kind), [""], ""
        if name == "LITERAL":
            plain = chr(value)
        elif name == "IN":
            either = {chr(one).lower() if str(of) == "LITERAL" else "" for of, one in value}
            plain = either.pop() if len(either) == 1 else ""
        elif name == "SUBPATTERN":
            alternatives = _needed(value[-1])
        elif name == "BRANCH":
            alternatives = [text for branch in value[1] for text in _needed(branch)]
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and value[0]:
            alternatives = _needed(value[2])
        elif name in ("AT", "ASSERT", "ASSERT_NOT"):
            continue  # it matches no characters
        run += plain
        if not plain:
            found += [[run], alternatives]
            run = ""
    few = (texts for texts in [*found, [run]] if len(texts) <= _MOST_ALTERNATIVES)
    return max(few, key=lambda texts: min(map(len, texts)))


@lru_cache(maxsize=8)  # several sets search the same line
def _grams(text: str) -> frozenset[int]:
    """Return each four letters in a row, as a number, several times as fast as slicing."""
    data = text.encode("ascii", "replace")
    shifted = (data[at : len(data) - (len(data) - at) % 4] for at in range(min(4, len(data))))
    return frozenset[int]().union(*(memoryview(letters).cast("I") for letters in shifted))
