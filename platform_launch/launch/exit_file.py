"""The exit code that a training itself gave: accelerate's launcher and torchrun make 1 of every failure.

A training that knows better (the shipped one refuses with 66, and ends with 143 when it was told to) leaves a
JSON object in the file that PLATFORM_LAUNCH_EXIT_FILE names, whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from platform_launch.supervise import Command, Outcome

VARIABLE = "PLATFORM_LAUNCH_EXIT_FILE"
_LARGEST = 64 * 1024


class ExitFile:
    """Where one node's training says with which code it ended; ``path`` None where no file can be written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def told(self, command: Command) -> Command:
        """Return the command, told of the file."""
        if self._path is None:
            return command
        return replace(command, env={**command.env, VARIABLE: str(self._path)})

    def clear(self) -> None:
        """Forget what an earlier start left."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def corrected(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the training's own code in the place of a launcher's 1."""
        code = self._read() if outcome.exit_code == 1 and outcome.stopped_by is None else None
        return outcome if code is None else replace(outcome, exit_code=code)

    def _read(self) -> int | None:
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                code = json.loads(file.read(_LARGEST))["exit_code"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return code if isinstance(code, int) and not isinstance(code, bool) and 0 < code < 256 else None


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
