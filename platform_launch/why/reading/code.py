"""Lines of a program's text: a failure that they spell out has not happened."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What only Python's own statements look like.
_STATEMENT = re.compile(
    rb"\s*(?:(?:async )?def \w{1,100}\(|class \w{1,100}[(:]|(?:from [\w.]{1,200} )?import [\w(*]|raise \w"
    rb"|return\b|(?:try|else|finally):\s*$|(?:if|elif|except|for|while|with)\b.{0,300}:\s*(?:#.{0,300})?$"
    rb"|@\w[\w.]{0,100}|assert \w|yield\b|(?:pass|continue|break)\s*$|self\.\w{1,100} = )"
)
# What stands between them: comments, parts of a call or a list, texts in quotes.
_PART = re.compile(
    rb"""\s*(?:\#|[])}]{1,3}[,:]?\s*$|[\w.]{1,100}[(\[{]\s*$|[\w.]{1,100}(?:: [\w\[\]., |]{1,80})? \+?= """
    rb"""|[\w*]{1,100},\s*$|[rfb]{0,2}["'].{0,300}["'][,)]{0,3}(?: \+ ?\\?| \\)?\s*$|[rf]?\"{3})"""
)
_FRAME = b'File "'
_LEAST_STATEMENTS = 2
_SHARE = 0.6


def are_of_a_program(lines: Iterable[bytes]) -> bool:
    """Tell whether most of these lines are Python's, and stand in no traceback."""
    told = [line for line in lines if line.strip()]
    if any(_FRAME in line for line in told):
        return False
    statements = sum(_STATEMENT.match(line) is not None for line in told)
    parts = sum(_PART.match(line) is not None for line in told)
    return statements >= _LEAST_STATEMENTS and statements + parts >= _SHARE * len(told)
