"""Errors before the job starts: one class and one exit code per family.

A message states what was read, from where and what was expected; a hint states what to do. Exit codes are in
the range of sysexits.h, away from 1 and 2, which scripts return themselves, so that a scheduler's rule (such
as a Kubernetes ``podFailurePolicy``) can distinguish "fix your job" from "retry elsewhere". The full table is
``docs/reference/exit-codes.md``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from platform_launch.text import Phrase, joined


class LaunchError(Exception):
    """A launch that must not start. ``exit_code`` 70: a bug in the launcher itself.

    ``event`` is its id for programs. ``marked``: its line must have that id, because it is the last line of a
    log that ``why`` may read.
    """

    exit_code = 70
    event = "launch-refused"
    marked = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def known_as(self, event: str) -> LaunchError:
        """Give this error its own id, which its line shows; return the error."""
        self.event, self.marked = event, True
        return self


class UsageError(LaunchError):
    """A flag or argument is wrong. Fix the command."""

    exit_code = 64
    event = "refused-usage"


class TopologyError(LaunchError):
    """The variables or flags do not determine which node this is, or how many there are. Fix the job.

    ``reading`` has what could be read, in the form of ``platform-launch topology``.
    """

    exit_code = 65
    event = "refused-topology"

    def __init__(self, message: str, hint: str = "", reading: dict[str, object] | None = None) -> None:
        super().__init__(message, hint)
        self.reading = reading or {}


class InputError(LaunchError):
    """A script, config, yaml or recipe is missing or invalid. Fix the job."""

    exit_code = 66
    event = "refused-input"


class InstallationError(LaunchError):
    """An environment, interpreter or Python package is missing. Fix the image."""

    exit_code = 67
    event = "refused-installation"


class HardwareError(LaunchError):
    """A device or driver of this node is broken. Retry elsewhere."""

    exit_code = 69
    event = "refused-hardware"


class HangError(LaunchError):
    """The job hung, and --on-hang stopped it. See which rank is named; try again."""

    exit_code = 77


class UnfitNodeError(LaunchError):
    """A device of this node has failed, or the node is in quarantine. Do not put the job back on it."""

    exit_code = 78
    event = "node-unfit"


class NodesAbsentError(LaunchError):
    """Nodes did not join the roll call, cannot be reached, or disappeared later. Retry elsewhere."""

    exit_code = 75
    event = "nodes-absent"
    marked = True


class NodesDisagreeError(LaunchError):
    """All nodes joined, but they were not given the same job. Fix the job or the image."""

    exit_code = 76
    event = "nodes-disagree"
    marked = True


# A full disk, a quota or a limit of the shell ends the output to a file or to standard output.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A path of the user's that is invalid: pathlib raises these when it checks whether the file exists.
_CLOSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ESTALE, errno.EIO, errno.EROFS, *_FULL}
)


def of_file(error: OSError) -> InputError | None:
    """Return the user's error for an OSError of a file, or of standard output if it names no file.

    None if it is a bug in this project.
    """
    if error.filename is None and error.errno in _FULL:
        return InputError(
            Phrase("the output cannot be written: {problem}", problem=error.strerror),
            "free some space on its disk",
        )
    if error.filename is None or error.errno not in _CLOSED:
        return None
    todo = Phrase("free some space there" if error.errno in _FULL else "correct the path or its permissions")
    return InputError(
        Phrase("{path}: {problem}", path=os.fsdecode(error.filename), problem=error.strerror), todo
    )


def shown(value: str, longest: int = 120) -> str:
    """Quote a value for a message: control characters escaped, long values cut."""
    return repr(value) if len(value) <= longest else f"{value[:longest]!r}… ({len(value)} characters)"


def shown_list(values: Collection[str], longest: int = 16) -> str:
    """List values for a message: escaped if needed, a long list cut."""
    first = [value if value.isprintable() else repr(value) for value in list(values)[:longest]]
    items = joined(value if len(value) <= 260 else shown(value) for value in first)
    if len(values) <= longest:
        return items
    return Phrase("{items} … ({count} in all)", items=items, count=len(values))
