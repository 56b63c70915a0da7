"""Tracebacks that a training goes on after: of code that it tries, of a model's words, of what it repeats.

The words around one only make it doubtful that it ended its process; whether work went on below decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Who is quoted, at the end of the line above, or before the traceback on its own line.
_QUOTES = re.compile(
    r"(?i)\b(?:answers?|candidates?|completions?|execution|generat(?:ed|ion)s?|hypothes[ie]s|model|outputs?"
    r"|predict(?:ed|ions?)|programs?|prompts?|responses?|rewards?|rollouts?|samples?|sandbox\w*|snippets?"
    r"|solutions?|stderr|tests?|tools?|unit ?tests?)\b"
    r"[^.!?]{0,80}(?:[:=>]|```\w*|-{3,}|={3,})\s*[\"']?\s*$"
)
_IS_REPEATED = re.compile(
    r"(?i)^\W*(?:\[?[A-Z]{4,8}\]?\W{1,3})?(?:will (?:be )?retr\w+|retry(?:ing)?\b|try(?:ing)? again"
    r"|fall(?:s|ing)? back"
    r"|skip(?:s|ping|ped)?\b|continu(?:es?|ing)\b|going on\b)"
)
_HEAD = "Traceback (most recent call last)"
LINES_AROUND = 3


def is_doubtful(above: Iterable[str], opening: str, below: Iterable[str]) -> bool:
    """Tell whether a traceback may be no end of the process that printed it.

    ``above`` and ``below`` are the lines around it, nearest first; ``opening`` is its first line.
    """
    before = [opening.partition(_HEAD)[0], *above]
    return any(map(_QUOTES.search, before)) or any(map(_IS_REPEATED.match, below))
