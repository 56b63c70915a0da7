"""Puts lines together again that a mail or an editor wrapped between words."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

_WIDTHS = range(60, 82)
_FEWEST_WRAPPED = 3
# Words are seldom longer.
_CLOSE = 20
# What begins a line of its own.
_BEGINS = re.compile(
    r"\s|$|\{\"|(?:level|time|ts)=|[│┃╭╰┌└|]"
    r"|Traceback \(|\[?rank\d|\[\d{1,7}\]:?\s|\[\d{4}-|\[[A-Z]\w{2,9}\]|\(\w{1,40} pid="
    r"|\W?\d{4}-\d\d-\d\d|[IWEF]\d{4} |[-=*#+|>]{2}|(?i:debug|info|warn(?:ing)?|error|critical|fatal)(?::|\s)"
    r"|(?:\w+\.)*\w*(?:Error|Exception): "
)
# Who says what follows.
_HEAD = re.compile(r"[\w./-]{1,60}: ")
_GAP = re.compile(r"\S {3,}(?=\S)")
_SHARE = 0.75


def rewrapped(lines: list[bytes]) -> list[bytes]:
    """Return lines as they were before they were wrapped, if they were.

    What is moved up leaves an empty line.
    """
    texts = [line.decode(errors="replace").rstrip() for line in lines]
    width = max((len(text) for text in texts if " " in text.strip()), default=0)
    if width not in _WIDTHS:
        return lines
    heads = Counter(found[0] for text in texts if (found := _HEAD.match(text)))
    full = [_is_full(text, below, width) for text, below in pairwise(texts)]
    wrapped = [is_full and not _begins(below, heads) for is_full, below in zip(full, texts[1:], strict=True)]
    close = sum(one and width - len(text) <= _CLOSE for one, text in zip(wrapped, texts, strict=False))
    if close < _FEWEST_WRAPPED or sum(wrapped) < _SHARE * sum(full):
        return lines
    joined = list(lines)
    for index in range(len(joined) - 2, -1, -1):
        if wrapped[index]:
            joined[index], joined[index + 1] = joined[index].rstrip() + b" " + joined[index + 1], b""
    return joined


def _is_full(text: str, below: str, width: int) -> bool:
    """Tell whether the first word of the line below did not fit at the end of this one."""
    first = below.split(maxsplit=1)[:1]
    in_table = len(_GAP.findall(text)) > 1
    return bool(text and first) and not in_table and len(text) <= width < len(text) + 1 + len(first[0])


def _begins(text: str, heads: Counter[str]) -> bool:
    """Tell whether a line begins as lines of logs do, or as others of this one do."""
    head = _HEAD.match(text)
    return _BEGINS.match(text) is not None or (head is not None and heads[head[0]] > 1)
