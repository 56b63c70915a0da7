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
# The same, as the name of what is quoted: at the beginning of the line above, or before each line.
_NAMES_QUOTED = re.compile(
    r"(?i)^\W{0,8}(?:answer|assistant|completion|generated|generation|prediction|response|rollout|sample)"
    r"(?: ?#?\d{1,9})?(?:\s*[:>=]|\W*$)"
    r"|(?:^|\s)\[(?:code[ _-]?exec\w*|grader|judge|reward|rollout|sample|sandbox|verifier)"
    r"(?:[ _:#-]\w{1,20})?\]"
)
_IS_REPEATED = re.compile(
    r"(?i)^\W*(?:\[?[A-Z]{4,8}\]?\W{1,3})?(?:will (?:be )?retr\w+|retry(?:ing)?\b|try(?:ing)? again"
    r"|fall(?:s|ing)? back"
    r"|skip(?:s|ping|ped)?\b|continu(?:es?|ing)\b|going on\b)"
    r"|\btrying (?:again|(?:it |once )?with|a smaller|the next|batch size)\b"
    r"|\bnot (?:available|found|installed)\b.{0,40}[,;:] ?(?:using|falling back|disabling|continuing)\b"
)
_HEAD = "Traceback (most recent call last)"
LINES_AROUND = 3


def is_doubtful(above: Iterable[str], opening: str, below: Iterable[str]) -> bool:
    """Tell whether a traceback may be no end of the process that printed it.

    ``above`` and ``below`` are the lines around it, nearest first; ``opening`` is its first line.
    """
    before = [opening.partition(_HEAD)[0], *above]
    quoted = any(_QUOTES.search(text) or _NAMES_QUOTED.search(text) for text in before)
    return quoted or is_repeated(below)


def is_repeated(below: Iterable[str]) -> bool:
    """Tell whether lines say that what failed above them is tried again, or done without."""
    return any(map(_IS_REPEATED.search, below))
