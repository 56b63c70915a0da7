"""The guard beside a supervisor, which ends the supervisor's tree should that be killed itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from types import TracebackType

from platform_launch.supervise import processes

# In the environment of all that is guarded, with a value of its own for each run.
VARIABLE = "PLATFORM_LAUNCH_TREE"

_GUARD = Path(__file__).with_name("guard.py")
# What the training gets to end by itself after the SIGTERM that the launcher's death sends it.
_GRACE_S = 5.0


class Guard:
    """Stands by while it is entered; ``temporary`` folders go with a supervisor that was killed.

    Nothing is guarded where no further process can be started, and where this one is PID 1: then the kernel
    ends the whole tree with it.
    """

    def __init__(self, environment: Mapping[str, str], temporary: Sequence[Path] = ()) -> None:
        self._environment = environment
        self._temporary = [str(folder) for folder in temporary]
        self._pid = self._to = -1
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
            self._pid = os.posix_spawn(
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
            self._pid = -1
        finally:
            os.close(its_stdin)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if self._pid > 0 and processes.is_child(self._pid):  # else somebody killed it, and it was reaped
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, SIGKILL)
                os.waitpid(self._pid, 0)
        if self._to >= 0:
            os.close(self._to)

    def watch(self, pid: int) -> None:
        """Guard a process and all that it starts."""
        self._write(f"{pid}\n")

    def _write(self, line: str) -> None:
        if self._pid > 0:
            with suppress(OSError):
                os.write(self._to, line.encode())
