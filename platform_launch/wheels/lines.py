"""Reads a build's output: the current op, and why the build failed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from platform_launch.text import Phrase

_EXTENSION = re.compile(r"building '(?:[\w.]+\.)?(\w+?)(?:_op)?' extension")
_NINJA = re.compile(r"^\s*\[(\d+)/(\d+)\] .*\s-c\s+('[^']+'|\S+)")


@dataclass(frozen=True)
class BuildStep:
    """Where a build is: ``done`` of ``files`` compiled for the op, ``op_number`` counted from 1."""

    op: str = ""
    op_number: int = 0
    done: int = 0
    files: int = 0
    file: str = ""

    def describe(self, ops_in_all: int) -> str:
        """Return it as a line."""
        # async_io includes pin_memory, so there may be more ops than requested.
        ops = max(ops_in_all, self.op_number)
        step = Phrase("op {number} of {ops}, {op}", number=self.op_number, ops=ops, op=self.op)
        if not self.files:
            return step
        return Phrase(
            "{step}: {done} of {files} files, {file}",
            step=step,
            done=self.done,
            files=self.files,
            file=self.file,
        )


def advance(step: BuildStep, line: str) -> BuildStep:
    """Return the progress after a line of output; the same object if the line has none."""
    if (extension := _EXTENSION.search(line)) is not None:
        return BuildStep(extension[1], step.op_number + 1)
    if (compiled := _NINJA.match(line)) is not None:
        return replace(
            step,
            done=int(compiled[1]),
            files=int(compiled[2]),
            file=compiled[3].strip("'\"").rsplit("/", 1)[-1],
        )
    return step


# The most specific first: what the machine lacks, the compiler's error, the exception of setup.py.
_CAUSES = (
    (r"Killed signal|fatal error: Killed|signal: 9", Phrase("memory ran out: build with fewer --jobs")),
    (r"No space left on device", Phrase("free some disk, or point TMPDIR to a larger one")),
    (
        r"unsupported GNU version",
        Phrase("use an older GCC: CC=gcc-12 CXX=g++-12; see the compiler bounds printed above"),
    ),
    (
        r"nvcc fatal\s*: Unsupported gpu architecture",
        Phrase("name another --arch, or use a newer CUDA toolkit"),
    ),
    (
        r"fatal error: (Python|libaio|cufile)\.h",
        Phrase("install the development package that contains this header"),
    ),
    (
        r"undefined reference|cannot find -l",
        Phrase("install the library's development package, or set LDFLAGS=-L…"),
    ),
    (r":\d+: (?:fatal )?error\b|\(\d+\): error\b|: fatal error:|nvcc fatal", ""),
    (r"^\s*\w*(?:Error|Exception): ", ""),
)
_CONTEXT = 4  # a compiler's error, the line of source, the caret, a note


def failure(output: str) -> tuple[list[str], str]:
    """Return the lines of a failed build's output with the root cause, and what to do about it.

    Its last lines, without advice, if no line stands out.
    The first error, because compilers run in parallel and errors cause others.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    for pattern, hint in _CAUSES:
        for number, line in enumerate(lines):
            if re.search(pattern, line):
                return [text.strip() for text in lines[number : number + _CONTEXT]], hint
    return [line.strip() for line in lines[-_CONTEXT:]], ""
