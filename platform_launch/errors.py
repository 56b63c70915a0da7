"""What can go wrong before training starts: one class and one exit code a family.

A message says what was read, from where and what was expected; a hint says what to do. Exit codes lie in
the range of sysexits.h, away from 1 and 2, which training scripts return themselves, so that a scheduler's
rule (a Kubernetes ``podFailurePolicy``) can tell "fix your job" from "retry elsewhere". The full table is
``docs/reference/exit-codes.md``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from platform_launch.text import Phrase


class LaunchError(Exception):
    """A launch that must not start. ``exit_code`` 70: a fault of the launcher itself.

    ``event`` is the id under which programs know it; ``marked`` tells that its line must carry that id, since
    it closes a launch whose log may be read by ``why``.
    """

    exit_code = 70
    event = "launch-refused"
    marked = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def known_as(self, event: str) -> LaunchError:
        """Give this error an id of its own, which its line carries; return it."""
        self.event, self.marked = event, True
        return self


class UsageError(LaunchError):
    """A flag or argument that cannot be used. Fix the command."""

    exit_code = 64
    event = "refused-usage"


class TopologyError(LaunchError):
    """The platform's variables or the flags do not say which node of how many this is. Fix the job.

    ``reading`` carries what could be read nevertheless, in the form of ``platform-launch topology``.
    """

    exit_code = 65
    event = "refused-topology"

    def __init__(self, message: str, hint: str = "", reading: dict[str, object] | None = None) -> None:
        super().__init__(message, hint)
        self.reading = reading or {}


class InputError(LaunchError):
    """A script, config, yaml or recipe is missing or would be refused later. Fix the job."""

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
    """Nothing moved any more, and --on-hang asked for the end. See who is named; try again."""

    exit_code = 77


class UnfitNodeError(LaunchError):
    """A device of this node has failed, or the node is in quarantine. Do not put the job back on it."""

    exit_code = 78
    event = "node-unfit"


class NodesAbsentError(LaunchError):
    """Nodes did not come to the roll call, cannot be reached, or vanished later. Retry elsewhere."""

    exit_code = 75
    event = "nodes-absent"
    marked = True


class NodesDisagreeError(LaunchError):
    """All nodes came, but they were not given the same job. Fix the job or the image."""

    exit_code = 76
    event = "nodes-disagree"
    marked = True


# A disk, a quota or a limit of the shell that ends what a file or standard output goes to.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A path of the user's that leads nowhere: pathlib asks whether a file exists, and raises these as the answer.
_CLOSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ESTALE, errno.EIO, errno.EROFS, *_FULL}
)


def of_file(error: OSError) -> InputError | None:
    """Return what an error of a file, or of standard output where it names none, means for the user.

    None where it is a fault of this project.
    """
    if error.filename is None and error.errno in _FULL:
        return InputError(
            Phrase("the output cannot be written: {problem}", problem=error.strerror),
            "free room where it goes",
        )
    if error.filename is None or error.errno not in _CLOSED:
        return None
    todo = Phrase("free room there" if error.errno in _FULL else "correct the path or its permissions")
    return InputError(
        Phrase("{path}: {problem}", path=os.fsdecode(error.filename), problem=error.strerror), todo
    )


def shown(value: str, longest: int = 120) -> str:
    """Quote a value for a message: control characters escaped, a monster cut short."""
    return repr(value) if len(value) <= longest else f"{value[:longest]!r}… ({len(value)} characters)"


def shown_list(values: Collection[str], longest: int = 16) -> str:
    """List values for a message: escaped where needed, a long list cut short."""
    first = [value if value.isprintable() else repr(value) for value in list(values)[:longest]]
    text = ", ".join(value if len(value) <= 260 else shown(value) for value in first)
    return text if len(values) <= longest else f"{text} … ({len(values)} in all)"
