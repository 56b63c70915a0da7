"""The exit code of a job's processes, of which accelerate's launcher and torchrun make 1.

torchrun's summary lists the codes of the ranks that failed. A training that knows more (the shipped one
refuses with 66, and ends with 143 when it is asked to stop) leaves a JSON object,
``{"exit_code": 66, "reason": "…"}``, in the file that PLATFORM_LAUNCH_EXIT_FILE names, whole or not at all.
The reason becomes an event, so that `why` quotes it instead of missing it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from platform_launch.events import Event, event
from platform_launch.supervise import Command, Outcome

VARIABLE = "PLATFORM_LAUNCH_EXIT_FILE"
_LARGEST = 64 * 1024
_LONGEST_REASON = 1000


class ExitFile:
    """Where one node's training says with which code it ended; ``path`` None where no file can be written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def folder(self) -> Path | None:
        """The private folder that it lies in."""
        return self._path.parent if self._path is not None else None

    def passed_to(self, command: Command) -> Command:
        """Return the command with the file named in its environment."""
        if self._path is None:
            return command
        return replace(command, env={**command.env, VARIABLE: str(self._path)})

    def clear(self) -> None:
        """Forget what an earlier start left."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def corrected(self, outcome: Outcome, tell: Callable[[Event], None]) -> Outcome:
        """Return the outcome with the job's own exit code in place of a launcher's 1; report its reason."""
        if outcome.exit_code == 0 or outcome.stopped_by is not None:
            return outcome
        from platform_launch.launch.torchrun_output import agreed_exit_code

        code, reason = self._read()
        own = code if code is not None else agreed_exit_code(outcome.tail)
        if outcome.exit_code == 1 and own is not None:
            outcome = replace(outcome, exit_code=own)
        if reason and code == outcome.exit_code:
            tell(event("training-reason", exit_code=code, reason=reason))
        return outcome

    def _read(self) -> tuple[int | None, str]:
        """Return the exit code, None where the file tells none, and the reason."""
        if self._path is None:
            return None, ""
        try:
            with self._path.open("rb") as file:
                content = json.loads(file.read(_LARGEST))
            code, reason = content["exit_code"], content.get("reason")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None, ""
        if not isinstance(code, int) or isinstance(code, bool) or not 0 < code < 256:
            return None, ""
        return code, reason.strip()[:_LONGEST_REASON] if isinstance(reason, str) else ""


@contextmanager
def exit_file() -> Iterator[ExitFile]:
    """Offer a file in a private folder that goes with the launch."""
    try:
        folder = TemporaryDirectory(prefix="platform_launch_exit_", ignore_cleanup_errors=True)
    except OSError:  # a convenience: it stops no launch
        yield ExitFile(None)
        return
    with folder as name:
        yield ExitFile(Path(name, "exit.json"))
