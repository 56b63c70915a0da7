"""Command lines run in the test's own process: a process of their own would cost 0.2 s and more each.

For what refuses, prints or writes a file. A command that starts a training, handles signals, or needs a
stand-in for a library from its start, is run as a process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from platform_launch.cli import main as platform_launch
from platform_launch.console import languages


def run_in_process(
    arguments: Sequence[str | Path],
    env: Mapping[str, str],
    cwd: Path | None = None,
    main: Callable[[Sequence[str]], int] = platform_launch,
) -> CompletedProcess[str]:
    """Run a command line with these variables only, and return what a process of its own would."""
    words = list(map(str, arguments))
    folder, variables, language = Path.cwd(), dict(os.environ), languages._chosen[:]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            languages._chosen.clear()
            os.environ.clear()
            os.environ.update(env)
            os.chdir(cwd or folder)
            with (
                _descriptor(1, output.fileno()),
                _descriptor(2, errors.fileno()),
                redirect_stdout(output),
                redirect_stderr(errors),
            ):
                try:
                    code = main(words)
                except SystemExit as leaving:  # click, when a shell completes a line
                    code = int(leaving.code or 0)
                output.flush()
                errors.flush()
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(variables)
            languages._chosen[:] = language
        return CompletedProcess(words, code, _all_of(output.fileno()), _all_of(errors.fileno()))


@contextmanager
def _descriptor(number: int, instead: int) -> Iterator[None]:
    """Let processes that a command starts write where it does."""
    getattr(sys, "stdout" if number == 1 else "stderr").flush()
    kept = os.dup(number)
    os.dup2(instead, number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


def _all_of(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()
