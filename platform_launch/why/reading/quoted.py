"""Errors that a training only prints: samples of data or of a model's words, and code that it tries.

A line that is quoted tells of no failure. The words around a traceback only make it doubtful that it ended
its process; whether work went on below decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Who is quoted, at the beginning of a line: of the one above, or of that which is quoted.
_NAMES_QUOTED = re.compile(
    r"(?i)^\W{0,8}(?:\[\d{1,6}\] )?(?:a|answer|assistant|completion|generat(?:ed|ion)|gold|input|label|output"
    r"|pred(?:iction)?|prompt|q|question|reference|response|rollout|sample|target|text|user)"
    r"(?: ?#?\d{1,9})?(?:\s*[:>=]\s|[:>=]?\W*$)"
    r"|(?:^|\s)\[(?:code[ _-]?exec\w*|grader|judge|reward|rollout|sample|sandbox|verifier)"
    r"(?:[ _:#-]\w{1,20})?\]"
)
# The same, before what is quoted on one line; also what parts the turns of a conversation.
_NAMES_QUOTED_BEFORE = re.compile(
    r"(?i)\b(?:answer|assistant|completion|prompt|question|rollout)[\"']?\s*[:=]\s|<\|\w{1,30}\|>"
)
# The same, at the end of the line above a traceback, or before it on its own line.
_ANNOUNCES = re.compile(
    r"(?i)\b(?:answers?|candidates?|completions?|execution|generat(?:ed|ion)s?|hypothes[ie]s|model|outputs?"
    r"|predict(?:ed|ions?)|programs?|prompts?|responses?|rewards?|rollouts?|samples?|sandbox\w*|snippets?"
    r"|solutions?|stderr|tests?|tools?|unit ?tests?)\b"
    r"[^.!?]{0,80}(?:[:=>]|```\w*|-{3,}|={3,})\s*[\"']?\s*$"
)
_IS_REPEATED = re.compile(
    r"(?i)^\W*(?:\[?[A-Z]{4,8}\]?\W{1,3})?(?:will (?:be )?retr\w+|retry(?:ing)?\b|try(?:ing)? again"
    r"|fall(?:s|ing)? back"
    r"|skip(?:s|ping|ped)?\b|continu(?:es?|ing)\b|going on\b)"
    r"|\btrying (?:again|(?:it |once )?with|a smaller|the next|batch size)\b"
    r"|\bnot (?:available|found|installed)\b.{0,40}[,;:] ?(?:using|falling back|disabling|continuing)\b"
)
_CELLS_BEFORE = 2
_HEAD = "Traceback (most recent call last)"
LINES_AROUND = 3


def is_quoted(text: str, position: int) -> bool:
    """Tell whether a line quotes the failure whose words it has at ``position``, in a table for one."""
    in_table = text.startswith("|") and text.endswith("|")
    return (
        _NAMES_QUOTED.search(text) is not None
        or _NAMES_QUOTED_BEFORE.search(text, 0, position) is not None
        or (in_table and text.count("|", 0, position) >= _CELLS_BEFORE)
    )


def is_doubtful(above: Iterable[str], opening: str, below: Iterable[str]) -> bool:
    """Tell whether a traceback may be no end of the process that printed it.

    ``above`` and ``below`` are the lines around it, nearest first; ``opening`` is its first line.
    """
    before = [opening.partition(_HEAD)[0], *above]
    quoted = any(_ANNOUNCES.search(text) or _NAMES_QUOTED.search(text) for text in before)
    return quoted or is_repeated(below)


def is_repeated(below: Iterable[str]) -> bool:
    """Tell whether lines say that what failed above them is tried again, or done without."""
    return any(map(_IS_REPEATED.search, below))
