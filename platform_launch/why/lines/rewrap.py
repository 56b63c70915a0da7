"""Puts lines together again that a mail or an editor wrapped between words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from platform_launch.why.lines.line import MOVED_UP

_WIDTHS = range(60, 133)
_WIDEST_USUAL = 81
# Lines that were not wrapped with the others, as those of a heading or of code are.
_FEW_LONGER = 20
_MOST_WIDTHS = 4
_FEWEST_WRAPPED, _FEWEST_VISIBLY = 3, 2
# Words are seldom longer.
_CLOSE = 20
# What begins a line of its own.
_BEGINS = re.compile(
    r"\s|$|\{\"|(?:level|time|ts)=|[│┃╭╰┌└|]"
    r"|Traceback \(|\[?rank\d|\[\d{1,7}\]:?\s|\[\d{4}-|\[[A-Z]\w{2,9}\]|\(\w{1,40} pid="
    r"|\W?\d{4}-\d\d-\d\d|[IWEF]\d{4} |[-=*#+|>]{2}|(?i:debug|info|warn(?:ing)?|error|critical|fatal)(?::|\s)"
    r"|(?:\w+\.)*\w*(?:Error|Exception): |terminate called |[\w./-]{1,40}: (?:error|task|warning)\b"
    r"|s(?:run|lurmstepd): "
)
# What a terminal cut between words.
_TORN = re.compile(r" \w")
# Who says what follows.
_HEAD = re.compile(r"[\w./-]{1,60}: |\[[^]\s]{1,40}\](?:[^\s:]{0,20}:|(?= ))")
# Columns of a table, and an entry of a traceback, below which stands its code.
_FRAME = re.compile(r'File "[^"]+", line \d+, in \S+$')
_GAP = re.compile(r"\S {3,}(?=\S)")
_SHARE, _LESSER_SHARE = 0.75, 0.5
# A word of a sentence, and what a program begins with that says who it is.
_WORD = re.compile(r"[a-z]{1,20}(?:[ ,;).]|$)")
_NAMED = re.compile(r"[\w.@/-]{1,60}:\S")
_DIGITS = re.compile(r"\d+")
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
# A word with a hyphen that an editor broke behind it.
_BROKEN_WORD = re.compile(r"[A-Za-z0-9]-$")


def rewrapped(lines: list[bytes]) -> list[bytes]:
    """Return lines as they were before they were wrapped, the same list if they were not.

    What is moved up leaves a blank line.
    """
    whole = [line.decode(errors="replace") for line in lines]
    texts = [line.rstrip() for line in whole]
    heads = Counter(found[0] for text in texts if (found := _HEAD.match(text)))
    wrapped = next(filter(None, (_wrapped(texts, whole, width, heads) for width in _widths(texts))), None)
    if wrapped is None:
        return lines
    joined = list(lines)
    for index in range(len(joined) - 2, -1, -1):
        if wrapped[index]:
            gap = b"" if _BROKEN_WORD.search(texts[index]) else b" "
            joined[index], joined[index + 1] = (
                joined[index].rstrip() + gap + joined[index + 1],
                MOVED_UP.encode(),
            )
    return joined


@dataclass(frozen=True)
class Width:
    """The width at which lines may have been wrapped, 0 if at none; ``shown`` if a few visibly were."""

    width: int = 0
    shown: bool = False


def width_of(lines: list[bytes]) -> Width:
    """Return the width at which lines may have been wrapped that do not show it clearly."""
    texts = [line.decode(errors="replace").rstrip() for line in lines]
    longest = max((len(text) for text in texts if " " in text.strip()), default=0)
    if longest not in _WIDTHS:
        return Width()
    full = (pair for pair in pairwise(texts) if _fits_no_more(*pair, longest))
    return Width(longest, sum(_goes_on(*pair) for pair in full) >= _FEWEST_VISIBLY)


class Rest(NamedTuple):
    """What may be the rest of a wrapped line, read as words and as pieces of one; of how many lines."""

    texts: tuple[str, ...]
    lines: int


def rest_of(text: str, below: Iterable[str], width: int) -> Rest:
    """Return what may be the rest of a line that was wrapped at a width."""
    rest: list[str] = []
    for line in below:
        above = rest[-1] if rest else text
        torn = len(above) == width and _TORN.match(line) is not None
        alone = len(above) > width and " " not in above.strip()  # a word that was too long for a line
        if not (alone or _fits_no_more(above, line, width)) or (_BEGINS.match(line) and not torn):
            break
        rest.append(line.rstrip())
    return Rest((" " + " ".join(rest), "".join(rest)) if rest else (), len(rest))


def _widths(texts: list[str]) -> list[int]:
    """Return the widths that text may have been wrapped at, where a few lines may not have been."""
    lengths = sorted((len(text) for text in texts if " " in text.strip()), reverse=True)
    within = dict.fromkeys(lengths[: 2 + len(lengths) // _FEW_LONGER])
    return [length for length in within if length in _WIDTHS][:_MOST_WIDTHS]


def _wrapped(texts: list[str], whole: list[str], width: int, heads: Counter[str]) -> list[bool] | None:
    """Return which lines go on in the one below if text was wrapped at a width; None if it was not.

    Where few lines could have been, or many that follow begin as lines do, each must go on visibly.
    """
    full = [_is_full(text, below, width) for text, below in pairwise(texts)]
    wrapped = [is_full and not _begins(below, heads) for is_full, below in zip(full, texts[1:], strict=True)]
    pairs = [pair for pair, one in zip(pairwise(texts), wrapped, strict=True) if one]
    close = [text for text, _ in pairs if width - len(text) <= _CLOSE]
    visible = sum(_goes_on(text, below) for text, below in pairs)
    # So wide, or beside longer ones, lines of logs often end alike by chance.
    longest = all(len(text) <= width or " " not in text.strip() for text in texts)
    usual = (longest and width <= _WIDEST_USUAL) or visible * 2 >= len(pairs)
    many = usual and len(close) >= _FEWEST_WRAPPED and len(pairs) >= _SHARE * sum(full)
    some = visible == len(pairs) and len(close) >= _FEWEST_VISIBLY and len(pairs) >= _LESSER_SHARE * sum(full)
    if not many and not some:
        return None
    # A terminal cuts wherever its width ends, and so all lines are as long, with the blank that ends some.
    ends = {text: len(one) for text, one in zip(texts, whole, strict=True)}
    longest_close = max((ends[text] for text in close), default=0)
    shapes = {_DIGITS.sub("0", text): ends[text] == longest_close for text in close}
    return wrapped if sum(shapes.values()) <= max(1, len(shapes) * 2 // 3) else None


def _goes_on(text: str, below: str) -> bool:
    """Tell whether a line is the rest of a sentence, or closes what the one above opens."""
    torn = any(
        text.count(opening) > text.count(closing) and below.count(closing) > below.count(opening)
        for opening, closing in _PAIRS
    )
    return (torn and not _NAMED.match(below)) or _WORD.match(below) is not None


def _is_full(text: str, below: str, width: int) -> bool:
    """Tell whether the first word of the line below did not fit at the end of this one."""
    apart = len(_GAP.findall(text)) > 1 or _FRAME.search(text) is not None
    return not apart and _fits_no_more(text, below, width)


def _fits_no_more(text: str, below: str, width: int) -> bool:
    first = below.split(maxsplit=1)[:1]
    return bool(text and first) and len(text) <= width < len(text) + 1 + len(first[0])


def _begins(text: str, heads: Counter[str]) -> bool:
    """Tell whether a line begins as lines of logs do, or as others of this one do."""
    head = _HEAD.match(text)
    return _BEGINS.match(text) is not None or (head is not None and heads[head[0]] > 1)
