"""Starts the guard, which kills a supervisor's processes if the supervisor itself is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from types import TracebackType

from platform_launch.supervise import processes

# In the environment of every guarded process, with a different value for each run.
VARIABLE = "PLATFORM_LAUNCH_TREE"

_GUARD = Path(__file__).with_name("guard.py")
# How long the job may take to exit after the SIGTERM that it gets when the launcher dies.
_GRACE_S = 5.0


class Guard:
    """Guards while it is entered. ``temporary`` folders are removed if the supervisor is killed.

    ``pid`` is its process id, -1 without a guard. There is none if no process can be started, or if this
    process is PID 1: when that dies, the kernel kills the whole tree.
    """

    def __init__(self, environment: Mapping[str, str], temporary: Sequence[Path] = ()) -> None:
        self._environment = environment
        self._temporary = [str(folder) for folder in temporary]
        self.pid = self._to = -1
        self.variables = {VARIABLE: os.urandom(8).hex()}

    def __enter__(self) -> Guard:
        if os.getpid() == 1:
            return self
        mark = "=".join((VARIABLE, self.variables[VARIABLE]))
        argv = (
            *(sys.executable, "-I", "-S", str(_GUARD)),
            *(str(os.getpid()), mark, str(_GRACE_S), *self._temporary),
        )
        its_stdin, self._to = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                argv,
                self._environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, its_stdin, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
        except OSError:
            self.pid = -1
        finally:
            os.close(its_stdin)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if self.pid > 0 and processes.is_child(self.pid):  # otherwise it was killed and reaped
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, SIGKILL)
                os.waitpid(self.pid, 0)
        if self._to >= 0:
            os.close(self._to)

    def watch(self, pid: int) -> None:
        """Guard a process and its descendants."""
        self._write(f"{pid}\n")

    def _write(self, line: str) -> None:
        if self.pid > 0:
            with suppress(OSError):
                os.write(self._to, line.encode())
