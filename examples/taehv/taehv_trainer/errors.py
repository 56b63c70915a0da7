"""A run that cannot start or go on: one line with the reason, one with what to do."""

from __future__ import annotations


class TrainingError(Exception):
    """The config, the data or a checkpoint cannot be used. ``train.py`` prints this and exits with 66."""

    exit_code = 66

    def __init__(self, message: str, hint: str = "", *, on_all_processes: bool = False) -> None:
        """``on_all_processes``: every process of the job raises the same error; one of them prints it."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.on_all_processes = on_all_processes
