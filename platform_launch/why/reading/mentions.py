"""Lines that speak of a failure that is none of the job's: warnings, advice, samples, other programs."""

from __future__ import annotations

import re

from platform_launch.why.lines.line import Line
from platform_launch.why.messages.signatures import Signature

# What says itself that it failed, and is not quoted by a line about something else.
_OUTRIGHT = re.compile(
    r"[\w./-]*(?:Error|Exception)\b|\s*what\(\): |\S*python[\d.]*: "
    r"|ERROR: (?:LoadError: )?SystemError: |(?:.*\s)?libgomp: "
    r"|.*(?:NCCL WARN|\|CCL_ERROR\|)|(?:CUDA|cuda|Cuda) ?[Ee]rror\D{0,9}\d+\s*$|forrtl: severe"
    r"|(?:\S{1,80}:\d+\] )?[A-Z]{3,5} out of memory\. (?:\w+ )?[Tt]ried to allocate "
)
# Advice, code, and samples of data or of what a model said: they speak of a failure.
_SPEAKS_OF_IT = re.compile(
    r"\s*[-+]?\s*(?:raise \w|except \w|assert \w|if \w.{0,200}:\s*$|--?[a-z][\w-]{1,60}[ =])"
    r"|(?:How|If|To|What|When|Why) (?:a |an |I |the |you )?[a-z]\w* "
    r"|(?:\[\d{1,6}\] )?(?i:a|answer|assistant|completion|generated|gold|input|label|output|pred(?:iction)?"
    r"|prompt|q|question|reference|response|sample|target|text|user)(?: \d{1,9})?: "
)
# The kernel's kill of what no training runs.
_OF_OTHER_PROGRAMS = re.compile(
    r"[Oo]ut of memory: Killed process \d+ \((?!python|pt_|ray|torch|train|accelerate|deepspeed)"
)


def is_mention(line: Line, signature: Signature) -> bool:
    """Tell whether a line that shows a signature only speaks of such a failure."""
    return (
        line.mild
        or (signature.raised and not _OUTRIGHT.match(line.text))
        or _SPEAKS_OF_IT.match(line.text) is not None
        or _OF_OTHER_PROGRAMS.search(line.text) is not None
    )
