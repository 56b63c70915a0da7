"""Lines that speak of a failure that is none of the job's: warnings, advice, samples, other programs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from platform_launch.why.lines.line import Line
from platform_launch.why.messages.signatures import Signature

# What says itself that it failed, and is not quoted by a line about something else.
_OUTRIGHT = re.compile(
    r"[\w./-]*(?:Error|Exception)\b|\s*what\(\): |\S*python[\d.]*: "
    r"|ERROR: (?:LoadError: )?SystemError: |(?:.*\s)?libgomp: "
    r"|.*(?:NCCL WARN|\|CCL_ERROR\|)|(?:CUDA|cuda|Cuda) ?[Ee]rror\D{0,9}\d+\s*$|forrtl: severe"
    r"|(?:\S{1,80}:\d+\] )?[A-Z]{3,5} out of memory\. (?:\w+ )?[Tt]ried to allocate "
)
# Advice, code, and samples of data or of what a model said, at the beginning of a line.
_SPEAKS_OF_IT = re.compile(
    r"\s*[-+]?\s*(?:raise \w|except \w|assert \w|if \w.{0,200}:\s*$|--?[a-z][\w-]{1,60}[ =])"
    r"|\s*[-+]?\s*(?:print|printf|echo|log(?:ger|ging)?\.\w{1,20}|warnings\.warn)\s?\(?f?[\"']"
    r"|(?:How|If|To|What|When|Why) (?:a |an |I |the |you )?[a-z]\w* "
    r"|(?:\[\d{1,6}\] )?(?i:a|answer|assistant|completion|generated|gold|input|label|output|pred(?:iction)?"
    r"|prompt|q|question|reference|response|sample|target|text|user)(?: \d{1,9})?: "
    r"|\s*(?:[-*+\u2022] )?(?:Fix(?:e[sd]|ing)?|Handle[sd]?|Catch(?:es)?|Work around)\b:? \S*[`\"']?\w"
    r"|test\w* \([\w.]{1,200}\) \.\.\. "
)
# The same, before what is said of a failure; also what parts the turns of a conversation.
_SPOKEN_BEFORE = re.compile(
    r"(?i)\b(?:answer|assistant|completion|prompt|question|rollout)[\"']?\s*[:=]\s|<\|\w{1,30}\|>"
)
_CELLS_BEFORE = 2
# What git says above the text of a change.
_OF_A_CHANGE = re.compile(r"\s*(?:commit [0-9a-f]{7,40}\b|Author: )")
LINES_OF_A_CHANGE = 12
# The kernel's kill of what no training runs.
_OF_OTHER_PROGRAMS = re.compile(
    r"[Oo]ut of memory: Killed process \d+ \((?!python|pt_|ray|torch|train|accelerate|deepspeed)"
)


def is_quoted(text: str, position: int) -> bool:
    """Tell whether a line only quotes or advises of the failure whose words it has at ``position``."""
    in_table = text.startswith("|") and text.endswith("|")
    return (
        _SPEAKS_OF_IT.match(text) is not None
        or _SPOKEN_BEFORE.search(text, 0, position) is not None
        or (in_table and text.count("|", 0, position) >= _CELLS_BEFORE)
    )


def is_of_a_change(above: Iterable[str]) -> bool:
    """Tell whether an indented line is of the text of a change, as the lines above it show."""
    return any(map(_OF_A_CHANGE.match, above))


def is_mild(line: Line, signature: Signature) -> bool:
    """Tell whether a line that shows a signature may tell of no failure of the job's."""
    return (
        line.mild
        or (signature.raised and not _OUTRIGHT.match(line.text))
        or _OF_OTHER_PROGRAMS.search(line.text) is not None
    )
