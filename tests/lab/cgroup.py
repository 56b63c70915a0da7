"""Control groups for processes on hosts of the lab, seen there as in a container; one with little memory.

    with memory_limit(2**30) as group:
        node1.popen(group.around(["python", "train.py"]))

A limit needs root, and the memory controller (version 1 or 2) where groups can be made below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

from tests.lab.needs import Need
from tests.lab.waiting import until

_MOUNT = Path("/sys/fs/cgroup")
_groups = count()

# `ip netns exec` shows a fresh /sys without control groups; a mount here is seen by the command alone.
_SHOW_2 = "mount -t cgroup2 none /sys/fs/cgroup"
_SHOW = {
    1: "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory && "
    "mount -t cgroup -o memory none /sys/fs/cgroup/memory && cd /sys/fs/cgroup/memory",
    2: f"{_SHOW_2} && cd /sys/fs/cgroup",
}
_ENTER = 'echo $$ > "$0/cgroup.procs" && cd "$OLDPWD" && exec "$@"'
# A command line is given to this one, to see the control groups of version 2.
SHOW_GROUPS = ("sh", "-c", f'{_SHOW_2} && exec "$0" "$@"')


@dataclass(frozen=True)
class Group:
    """A control group; ``version`` is that of its controller."""

    folder: Path
    version: int

    def around(self, argv: Sequence[str | Path]) -> list[str]:
        """Return the command line that runs ``argv`` in this group, as one process throughout."""
        return ["sh", "-c", f"{_SHOW[self.version]} && {_ENTER}", self.folder.name, *map(str, argv)]


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Group]:
    """Make a group that holds so much memory, and end what is left in it. Raises OSError."""
    version = 1 if (_MOUNT / "memory").is_dir() else 2
    root, file = (_MOUNT / "memory", "memory.limit_in_bytes") if version == 1 else (_MOUNT, "memory.max")
    group = Group(root / f"lab{os.getpid()}x{next(_groups)}", version)
    group.folder.mkdir()
    try:
        (group.folder / file).write_text(str(limit_bytes))
        yield group
    finally:
        _remove(group.folder)


def _remove(folder: Path) -> None:
    """Remove a group once its processes are gone: those that were killed leave a moment later."""

    def gone() -> bool:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        with suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    until(gone, f"{folder} keeps processes that are killed")


@cache
def why_no_memory_limit() -> str:
    """Return why this machine cannot limit the memory of a group, empty when it can."""
    if os.geteuid() != 0:
        return "needs root to make control groups"
    try:
        with memory_limit(2**30):
            return ""
    except OSError as error:
        return f"the memory of a control group cannot be limited here: {error}"


requires_memory_limit = Need("control groups", why_no_memory_limit).mark
