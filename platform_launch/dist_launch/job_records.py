"""A job on one node: its record, and which of the node's processes belong to it.

A process belongs to a job if it has the job's variable, is in the session that the job's command leads, or is
in the job's control group. Process names are never used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from platform_launch.dist_launch.folder import WaitFolder, write_private
from platform_launch.hardware import cgroup, running
from platform_launch.hardware.running import Process
from platform_launch.supervise import DEFAULT_GRACE_S

MARKER = "DIST_LAUNCH_JOB"


@dataclass(frozen=True)
class JobRecord:
    """A job that was started on this node. ``session`` is its command's process id, ``session_started`` that
    process's start in ticks since boot; ``leader`` is the same for the agent that supervises it. ``group`` is
    its control group's folder, empty if none could be created. ``grace_s`` is how long it may take to exit
    after SIGTERM.
    """

    name: str
    run: str
    command: str
    since: str
    leader: int
    leader_started: int
    session: int
    session_started: int
    group: str = ""
    grace_s: float = DEFAULT_GRACE_S

    @property
    def leader_lives(self) -> bool:
        """Whether the agent still supervises the job."""
        return running.find(self.leader, started=self.leader_started) is not None


def marker(folder: WaitFolder, name: str, run: str) -> str:
    """Return the value of DIST_LAUNCH_JOB in a job's processes; the folder makes it unique to this node."""
    return f"{folder.path}:{name}:{run}"


def write(folder: WaitFolder, record: JobRecord) -> None:
    """Write the record of a job that runs. Raises OSError."""
    write_private(_path(folder, record.name), json.dumps(asdict(record)))


def forget(folder: WaitFolder, name: str) -> None:
    """Remove the record of a job that has ended."""
    with suppress(FileNotFoundError):
        _path(folder, name).unlink()


def records(folder: WaitFolder) -> list[JobRecord]:
    """Return the jobs that were started here and have not been cleaned up, by name."""
    found = []
    with suppress(OSError):
        for path in sorted(folder.jobs.glob("*.json")):
            with suppress(OSError, ValueError, TypeError):
                found.append(JobRecord(**json.loads(path.read_text(encoding="utf-8"))))
    return found


def processes(folder: WaitFolder, name: str | None, known: Iterable[JobRecord]) -> Iterator[Process]:
    """Yield the live processes of a job here (None: of every job), never a ``wait`` or this process."""
    known = [record for record in known if name in (None, record.name)]
    prefix = f"{folder.path}:" if name is None else f"{folder.path}:{name}:"
    excluded = running.ancestors(os.getpid()) | {pid for pid in [folder.owner()] if pid is not None}
    sessions = {record.session for record in known if _session_is_its(record)}
    grouped = {pid for record in known if record.group for pid in cgroup.members(Path(record.group))}
    leaders = {record.leader for record in known}
    for process in running.running():
        if process.pid in excluded or process.pid in leaders:
            continue
        inside = process.session in sessions or process.pid in grouped
        if inside or (running.variable(process.pid, MARKER) or "").startswith(prefix):
            yield process


def _session_is_its(record: JobRecord) -> bool:
    """Return whether a session is still the job's: its number is reused only once no process is in it."""
    found = running.find(record.session)
    return found is None or found.started == record.session_started


def _path(folder: WaitFolder, name: str) -> Path:
    return folder.jobs / f"{name}.json"
