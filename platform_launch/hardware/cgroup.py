"""Limits of the control group this process lives in, versions 1 and 2.

A limit of any group up to the root applies, so the smallest one counts. In a container the path in
``/proc/self/cgroup`` may be the host's and not exist under ``/sys/fs/cgroup``; the container's own group is
then the root there (Linux: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst,
scheduler/sched-bwc.rst).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from platform_launch.hardware.kernel_files import text


def limits(sys_root: Path, proc_root: Path) -> tuple[float | None, int | None]:
    """Return the lowest processor quota, possibly a fraction, and memory limit in bytes; None: no limit."""
    cpus: list[float] = []
    memory: list[int] = []
    mount = sys_root / "fs/cgroup"
    for controllers, path in _memberships(proc_root):
        if not controllers:
            for group in _groups(mount, path):
                cpus += _ratio(text(group / "cpu.max").split())
                memory += _bytes(text(group / "memory.max").split())
        if "cpu" in controllers:
            for group in _groups(mount / "cpu", path):
                quota = text(group / "cpu.cfs_quota_us").split()
                cpus += _ratio(quota + text(group / "cpu.cfs_period_us").split())
        if "memory" in controllers:
            for group in _groups(mount / "memory", path):
                memory += _bytes(text(group / "memory.limit_in_bytes").split())
    return min(cpus, default=None), min(memory, default=None)


def spare_memory_bytes(sys_root: Path, proc_root: Path) -> int | None:
    """Return how much can still be used below the lowest memory limit; None without a limit.

    File cache that is not in use counts as spare: the kernel drops it first.
    """
    spare: list[int] = []
    mount = sys_root / "fs/cgroup"
    for controllers, path in _memberships(proc_root):
        if not controllers:
            for group in _groups(mount, path):
                spare += _spare(group, "memory.max", "memory.current", "inactive_file")
        if "memory" in controllers:
            for group in _groups(mount / "memory", path):
                spare += _spare(
                    group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                )
    return min(spare, default=None)


def oom_kills(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> int | None:
    """Return how many processes the kernel has killed for lack of memory in this process's own group.

    None if nothing counts them. A group's children are included (cgroup-v2.rst, memory.events).
    """
    mount = sys_root / "fs/cgroup"
    for controllers, path in _memberships(proc_root):
        if not controllers:
            files = [group / "memory.events" for group in _groups(mount, path)]
        elif "memory" in controllers:
            files = [group / "memory.oom_control" for group in _groups(mount / "memory", path)]
        else:
            continue
        for file in files:
            for name, count in _pairs(text(file)):
                if name == "oom_kill":
                    return count
    return None


class OomKills:
    """Counts the processes that the kernel kills for lack of memory in this process's group from now on."""

    def __init__(self) -> None:
        self._before = oom_kills()

    def so_far(self) -> int | None:
        """Return their number; None if nothing counts them."""
        now = oom_kills()
        return None if now is None or self._before is None else now - self._before


def _pairs(lines: str) -> list[tuple[str, int]]:
    """Read lines of a name and a number."""
    words = [line.split() for line in lines.splitlines()]
    return [(word[0], int(word[1])) for word in words if len(word) == 2 and word[1].isdigit()]


def own_folder(sys_root: Path, proc_root: Path) -> Path | None:
    """Return the folder of this process's control group (version 2), None if none is visible."""
    for mount in (sys_root / "fs/cgroup", sys_root / "fs/cgroup/unified"):
        for controllers, path in _memberships(proc_root):
            if not controllers and (mount / "cgroup.procs").is_file():
                group = _groups(mount, path)[0]
                return group if group.is_dir() else mount
    return None


def members(group: Path) -> list[int]:
    """Return the processes in a control group; empty if the group no longer exists."""
    return [int(word) for word in text(group / "cgroup.procs").split() if word.isdigit()]


def _spare(group: Path, limit: str, usage: str, cache: str) -> list[int]:
    limits, used = _bytes(text(group / limit).split()), _bytes(text(group / usage).split())
    if not limits or not used:
        return []
    cached = sum(count for name, count in _pairs(text(group / "memory.stat")) if name == cache)
    return [limits[0] - used[0] + cached]


def _memberships(proc_root: Path) -> Iterator[tuple[list[str], str]]:
    """Yield version 1 controllers (none for version 2) and the path of each group this process is in."""
    for line in text(proc_root / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator:
            yield [name for name in controllers.split(",") if name], path


def _groups(mount: Path, path: str) -> list[Path]:
    """Return the group's folder and those above it, up to the mount's root."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _ratio(words: list[str]) -> list[float]:
    """Read quota and period; ``max`` and -1 mean no limit."""
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return []
    return [int(words[0]) / int(words[1])]


def _bytes(words: list[str]) -> list[int]:
    return [int(word) for word in words if word.isdigit()]
