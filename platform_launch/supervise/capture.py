"""Runs a short-lived program and returns its whole output, within a time limit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from platform_launch.supervise.processes import Command, shell_code
from platform_launch.text import Phrase
from platform_launch.values import dataclass

if TYPE_CHECKING:
    from subprocess import Popen

# As timeout(1) returns.
TIMED_OUT = 124


@dataclass(frozen=True)
class Answer:
    """What a program wrote. ``exit_code``: its own, 128 + signal, 124 at a timeout, 126/127 not started."""

    exit_code: int
    stdout: str
    stderr: str

    def failure(self, limit_s: float) -> str:
        """Describe the failure: a timeout, or the exit code and the last line that it wrote."""
        if self.exit_code == TIMED_OUT:
            return Phrase("no answer within {limit:g} s", limit=limit_s)
        last = self.stderr.strip().splitlines()[-1:] or [Phrase("it printed nothing")]
        return Phrase(
            "exit code {code}, {last}",
            code=self.exit_code,
            last=last[0] if len(last[0]) <= 300 else last[0][:300],
        )


def capture(command: Command, *, timeout_s: float, on_line: Callable[[str], None] | None = None) -> Answer:
    """Run a program without input in its own session; after the timeout, its whole group is killed.

    ``on_line`` receives each line of its output as soon as it is written, in another thread.
    """
    import subprocess  # takes 10 ms, which a launch can save

    try:
        process = subprocess.Popen(
            command.argv,
            env=command.env,
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        return Answer(code, "", f"{command.argv[0]}: {error.strerror}")
    with process:
        try:
            stdout, stderr = _communicate(process, timeout_s, on_line)
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            return Answer(TIMED_OUT, "", "")  # a process that left the group may keep the pipes open
        except BaseException:  # Ctrl-C: the program has its own session and did not get it
            _kill_group(process.pid)
            raise
    return Answer(shell_code(process.returncode), stdout, stderr)


def _communicate(
    process: Popen[str], timeout_s: float, on_line: Callable[[str], None] | None
) -> tuple[str, str]:
    if on_line is None:
        return process.communicate(timeout=timeout_s)
    lines: list[str] = []
    output, process.stdout = process.stdout, None  # read here, not by communicate

    def read() -> None:
        assert output is not None
        with output:
            for line in output:
                lines.append(line)
                on_line(line)

    thread = Thread(target=read, name="capture", daemon=True)
    thread.start()
    _, stderr = process.communicate(timeout=timeout_s)
    thread.join(timeout_s)
    return "".join(lines), stderr


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
