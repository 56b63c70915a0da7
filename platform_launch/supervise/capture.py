"""Asking a short-lived program a question: its whole output, within a limit of time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from platform_launch.supervise.processes import Command, shell_code
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from subprocess import Popen

# The code timeout(1) gives.
TIMED_OUT = 124


@dataclass(frozen=True)
class Answer:
    """What a program wrote. ``exit_code`` is its own, 128 + signal, 124 out of time, 126/127 not started."""

    exit_code: int
    stdout: str
    stderr: str

    def failure(self, limit_s: float) -> str:
        """Say how it failed: that its time was over, or its exit code and the last line that it wrote."""
        if self.exit_code == TIMED_OUT:
            return Phrase("no answer within {limit:g} s", limit=limit_s)
        last = self.stderr.strip().splitlines()[-1:] or [Phrase("it said nothing")]
        return Phrase(
            "exit code {code}, {last}",
            code=self.exit_code,
            last=last[0] if len(last[0]) <= 300 else last[0][:300],
        )


def capture(command: Command, *, timeout_s: float, heard: Callable[[str], None] | None = None) -> Answer:
    """Run a program without input in a session of its own; out of time, its whole group is killed.

    ``heard`` gets each line of its output as soon as it is there, in another thread.
    """
    import subprocess  # 10 ms that a launch need not pay

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
            stdout, stderr = _communicate(process, timeout_s, heard)
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            return Answer(TIMED_OUT, "", "")  # whoever escaped the group may hold the pipes for long
        except BaseException:  # Ctrl-C: the program has a session of its own and did not hear it
            _kill_group(process.pid)
            raise
    return Answer(shell_code(process.returncode), stdout, stderr)


def _communicate(
    process: Popen[str], timeout_s: float, heard: Callable[[str], None] | None
) -> tuple[str, str]:
    if heard is None:
        return process.communicate(timeout=timeout_s)
    lines: list[str] = []
    output, process.stdout = process.stdout, None  # is read here, and left alone by communicate

    def listen() -> None:
        assert output is not None
        with output:
            for line in output:
                lines.append(line)
                heard(line)

    thread = Thread(target=listen, name="capture", daemon=True)
    thread.start()
    _, stderr = process.communicate(timeout=timeout_s)
    thread.join(timeout_s)
    return "".join(lines), stderr


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
