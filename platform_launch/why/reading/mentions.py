"""Lines that speak of a failure that is none of the job's: warnings, advice, code, other programs."""

from __future__ import annotations

import re

from platform_launch.why.lines.line import Line
from platform_launch.why.messages.signatures import Signature

# What says itself that it failed, and is not quoted by a line about something else.
_OUTRIGHT = re.compile(
    r"[\w./-]*(?:Error|Exception)\b|\s*what\(\): |\S*python[\d.]*: "
    r"|ERROR: (?:LoadError: )?SystemError: |(?:.*\s)?libgomp: "
    r"|.*(?:(?:NCCL|CCOM) WARN|\|CCL_ERROR\|)|(?:CUDA|cuda|Cuda) ?[Ee]rror\D{0,9}\d+\s*$|forrtl: severe"
    r"|\s*GPUassert: |\s*cuda\w{1,20}\(\) failed at |\s*C(?:uda|UDA) (?:error in file|Runtime Error)\b"
    r"|The runtime failed to allocate the necessary |.*\bbackend failed with error: \d+ \(\w+_ERROR_OUT_OF_"
    r"| ?on Pe \d"  # NAMD, below its line that says FATAL ERROR
    # The rest of torch's message, of which the beginning is not in the log.
    r"|(?!.*out of memory).{0,400}?(?:Including non-PyTorch memory, this process has |size_mb to avoid fragm)"
    r"|(?:\S{1,80}:\d+\] )?[A-Z]{3,5} out of memory\. (?:\w+ )?[Tt]ried to allocate "
)
# A line of code, whatever stands before it: what it would say has not happened by its being shown.
_CODE = re.compile(
    r"(?:.{0,120}?[|\]):>+-] +|\s*)(?:\d{1,6}[:|]? +)?"
    r"(?:raise \w[\w.]*\(|assert\b(?=.*[('\"]).*['\")\]]\s*$|throw (?:new )?\w"
    r"|(?:self\.)?(?:_?log(?:ger|ging)?|warnings?|LOG|print|printf|fprintf)\w*(?:\.\w{1,20}){0,2}\([frb]{0,2}[\"']"
    r"|(?:TORCH_CHECK|NCCLCHECK|CUDACHECK)\w*\()"
    r"|\s+(?:elif|except|if|return|while|with|yield)\b(?=.*[('\":]).*['\")\]:]\s*$"
)
# Phrase, code, and tests, at the beginning of a line.
_SPEAKS_OF_IT = re.compile(
    r"\s*[-+]?\s*(?:raise \w|except \w|assert \w|if \w.{0,200}:\s*$|--?[a-z][\w-]{1,60}[ =])"
    r"|\s*[-+]?\s*(?:print|printf|echo|log(?:ger|ging)?\.\w{1,20}|warnings\.warn)\s?\(?f?[\"']"
    r"|(?:How|If|To|What|When|Why) (?:a |an |I |the |you )?[a-z]\w* "
    r"|\s*(?:[-*+\u2022] )?(?:Fix(?:e[sd]|ing)?|Handle[sd]?|Catch(?:es)?|Work around)\b:? \S*[`\"']?\w"
    r"|test\w* \([\w.]{1,200}\) \.\.\. "
)
# The kernel's kill of what no training runs, and what the loader says of the system's own programs.
_OF_OTHER_PROGRAMS = re.compile(
    r"[Oo]ut of memory: Killed process \d+ \((?!python|pt_|ray|torch|train|accelerate|deepspeed)"
    r"|(?:/(?:usr/)?(?:libexec|s?bin)/(?!mpi|orte|prte|python|srun)\S{1,200}|curl|git|rsync|scp|ssh|wget): "
    r"(?:symbol lookup error|error while loading shared libraries): "
)
# One of several tries, as huggingface_hub tells of each.
_OF_A_TRY = re.compile(r"thrown while requesting (?:HEAD|GET) https?://")


def is_code(text: str) -> bool:
    """Tell whether a line is one of a program's text, as tracebacks and reports quote them."""
    perhaps = "(" in text or text[:1] == " " or "assert" in text or "throw " in text
    return perhaps and _CODE.match(text) is not None


def speaks_of_it(text: str) -> bool:
    """Tell whether a line only advises of a failure whose words it has, or is code that tells of it."""
    return _SPEAKS_OF_IT.match(text) is not None


def is_mild(line: Line, signature: Signature) -> bool:
    """Tell whether a line that shows a signature may tell of no failure of the job's."""
    return (
        line.mild
        or (signature.raised and not line.fatal and not _OUTRIGHT.match(line.text))
        or _OF_OTHER_PROGRAMS.search(line.text) is not None
        or _OF_A_TRY.search(line.text) is not None
    )
