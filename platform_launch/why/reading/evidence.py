"""Which lines are no evidence: code, advice, warnings, quotations, other programs, temporary faults.

The line itself and those around it decide. A quoted line is no failure. The words around a traceback only
make it doubtful that it ended its process; whether work continued below decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from platform_launch.why.lines.line import Line, plain, says_it_continues, text_of
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import Scanner
from platform_launch.why.messages.signatures import Signature
from platform_launch.why.messages.tracebacks import Traceback
from platform_launch.why.reading.pods import of_same_pod

# Lines that themselves report a failure, not quoted in a line about something else.
_OUTRIGHT = re.compile(
    r"[\w./-]*(?:Error|Exception)\b|\S*python[\d.]*: |.*(?:NCCL|CCOM) WARN"
    r"|(?:CUDA|cuda|Cuda) ?[Ee]rror\D{0,9}\d+\s*$|\s*GPUassert: "
    r"| ?on Pe \d"  # NAMD, below its line that says FATAL ERROR
    # The rest of torch's message whose beginning is not in the log.
    r"|(?!.*out of memory).{0,400}?(?:Including non-PyTorch memory, this process has |size_mb to avoid fragm)"
    r"|(?:\S{1,80}:\d+\] )?[A-Z]{3,5} out of memory\. (?:\w+ )?[Tt]ried to allocate "
)
# A line of code, whatever precedes it: that it is shown does not mean that it happened.
_CODE = re.compile(
    r"(?:.{0,120}?[|\]):>+-] +|\s*)(?:\d{1,6}[:|]? +)?"
    r"(?:raise \w[\w.]*\(|assert\b(?=.*[('\"]).*['\")\]]\s*$|throw (?:new )?\w"
    r"|(?:self\.)?(?:_?log(?:ger|ging)?|warnings?|LOG|print|printf|fprintf)\w*(?:\.\w{1,20}){0,2}\([frb]{0,2}[\"']"
    r"|(?:TORCH_CHECK|NCCLCHECK|CUDACHECK)\w*\()"
    r"|\s+(?:elif|except|if|return|while|with|yield)\b(?=.*[('\":]).*['\")\]:]\s*$"
)
# Options, phrases and tests, at the beginning of a line.
_SPEAKS_OF_IT = re.compile(
    r"\s*[-+]?\s*(?:--?[a-z][\w-]{1,60}[ =]|echo [\"'])"
    r"|(?:How|If|To|What|When|Why) (?:a |an |I |the |you )?[a-z]\w* "
    r"|\s*(?:[-*+\u2022] )?Fix(?:e[sd]|ing)?\b:? \S*[`\"']?\w"
    r"|test\w* \([\w.]{1,200}\) \.\.\. "
)
# The kernel's kill of a program that no training runs, and the loader's messages about system programs.
_OF_OTHER_PROGRAMS = re.compile(
    r"[Oo]ut of memory: Killed process \d+ \((?!python|pt_|ray|torch|train|accelerate|deepspeed)"
    r"|(?:/(?:usr/)?(?:libexec|s?bin)/(?!mpi|orte|prte|python|srun)\S{1,200}|curl|git|rsync|scp|ssh|wget): "
    r"(?:symbol lookup error|error while loading shared libraries): "
)
# The source of a quotation, at the beginning of a line.
_NAMES_QUOTED = re.compile(
    r"(?i)^\W{0,8}(?:\[\d{1,6}\] )?(?:a|answer|assistant|completion|generat(?:ed|ion)|gold|input|label|output"
    r"|pred(?:iction)?|prompt|q|question|reference|response|rollout|sample|target|text|user)"
    r"(?: ?#?\d{1,9})?(?:\s*[:>=]\s|[:>=]?\W*$)"
    r"|(?:^|\s)\[(?:code[ _-]?exec\w*|grader|judge|reward|rollout|sample|sandbox|verifier)"
    r"(?:[ _:#-]\w{1,20})?\]"
)
# The same, before the quotation on one line; also the separator of turns in a conversation.
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
_CELLS_BEFORE = 2
_HEAD = "Traceback (most recent call last)"
_LINES_AROUND = 3
_LINES_OF_WHAT_PASSED = 40
# In a log with a failure on every line, the neighbours are not read as often.
_MOST_LOOKS_BELOW = 200
# Python writes a warning's text after the place and the category, and the code below it.
_WARNING = re.compile(r"\S{1,400}\.pyx?:\d{1,6}: \w{0,60}Warning: ")
_CODE_THAT_WARNED = re.compile(r"  \S")
_LINES_OF_A_WARNING = 15


def is_code(text: str) -> bool:
    """Return whether a line is source code, as in tracebacks and reports."""
    perhaps = "(" in text or text[:1] == " " or "assert" in text or "throw " in text
    return perhaps and _CODE.match(text) is not None


def is_only_about_it(text: str) -> bool:
    """Return whether a line is only advice about a failure, or code that reports it."""
    return _SPEAKS_OF_IT.match(text) is not None


def is_mild(line: Line, signature: Signature) -> bool:
    """Return whether a line with a signature may be no failure of the job."""
    return (
        line.mild
        or (signature.raised and not line.fatal and not _OUTRIGHT.match(line.text))
        or _OF_OTHER_PROGRAMS.search(line.text) is not None
    )


def is_quoted(text: str, position: int) -> bool:
    """Return whether a line only quotes the failure at ``position``, for instance in a table."""
    in_table = text.startswith("|") and text.endswith("|")
    return (
        _NAMES_QUOTED.search(text) is not None
        or _NAMES_QUOTED_BEFORE.search(text, 0, position) is not None
        or (in_table and text.count("|", 0, position) >= _CELLS_BEFORE)
    )


def is_doubtful(above: Iterable[str], opening: str, below: Iterable[str]) -> bool:
    """Return whether a traceback may not have ended the process that printed it.

    ``above`` and ``below`` are the lines around it, nearest first; ``opening`` is its first line.
    """
    before = [opening.partition(_HEAD)[0], *above]
    quoted = any(_ANNOUNCES.search(text) or _NAMES_QUOTED.search(text) for text in before)
    return quoted or any(map(says_it_continues, below))


class Surroundings:
    """The lines around the current one of a log."""

    def __init__(self, scanner: Scanner, prefixes: Prefixes) -> None:
        self._scanner = scanner
        self._prefixes = prefixes
        self._looks_below = 0

    def continues_without(self) -> bool:
        """Return whether the line below says that the failed action is retried, or skipped."""
        if self._looks_below >= _MOST_LOOKS_BELOW:
            return False
        self._looks_below += 1
        return any(map(says_it_continues, map(self._text, self._scanner.following(1))))

    def show_it_passed(self, signature: Signature, text: str) -> bool:
        """Return whether lines below say that the fault is over, as events of pods and kernels do."""
        following = of_same_pod(text, self._scanner.following(_LINES_OF_WHAT_PASSED))
        below = b"\n".join(following).decode(errors="replace") if signature.passed else ""
        return any(re.search(pattern, f"{text}\n{below}") for pattern in signature.passed)

    def make_doubtful(self, traceback: Traceback) -> bool:
        """Return whether the lines around a traceback quote it, or say that its code continues."""
        number, current = self._scanner.number, self._scanner.current
        behind = max(0, number - traceback.start)
        above = self._scanner.preceding(behind + _LINES_AROUND)
        opening = above[behind - 1] if 0 < behind <= len(above) else current
        between = above[: max(0, number - 1 - traceback.end)]
        below = [*reversed(between), *([current] if traceback.end < number else [])]
        below += self._scanner.following(_LINES_AROUND)
        before, after = (list(map(self._text, lines)) for lines in (above[behind:], below[:_LINES_AROUND]))
        return is_doubtful(before, plain(opening), after)

    def is_of_a_warning(self) -> bool:
        """Return whether the current line is part of a warning that Python printed above it."""
        for text in map(self._text, self._scanner.preceding(_LINES_OF_A_WARNING)):
            if _WARNING.match(text):
                return True
            if _CODE_THAT_WARNED.match(text):
                return False
        return False

    def _text(self, data: bytes) -> str:
        return text_of(data, self._prefixes)
