"""Stops a job on one node, with or without its supervisor, and reports the state of the GPUs afterwards."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from platform_launch.dist_launch import job_records
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.job_records import JobRecord
from platform_launch.errors import HardwareError
from platform_launch.hardware import nvml, running
from platform_launch.hardware.gpus import Gpus, usage_warnings
from platform_launch.hardware.running import Process
from platform_launch.supervise.signals import ENDING

_LOOK_S = 0.1
# For processes that ignore SIGTERM once their leader is gone. SIGKILL acts at once, except inside a driver.
_OBEY_S = 3.0
_KILL_S = 10.0
# The driver frees the memory of a process shortly after it ends.
_GPU_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Stop all jobs of a ``wait`` that is asked to stop, gracefully; a second signal changes nothing."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    folder = WaitFolder(Path(arguments[0]))
    _end(folder, None, _longest_grace_s(folder) + _OBEY_S, force=False)
    return 0


def limit_s(folder: WaitFolder) -> float:
    """Return the longest time that stopping the jobs here can take, in seconds; 0 if none runs."""
    grace_s = _longest_grace_s(folder)
    return grace_s + 3 * _OBEY_S + _KILL_S if grace_s else 0.0


def _longest_grace_s(folder: WaitFolder) -> float:
    return max((max(record.grace_s, _OBEY_S) for record in job_records.records(folder)), default=0.0)


def sweep(folder: WaitFolder, name: str | None, grace_s: float, *, force: bool) -> dict[str, Any]:
    """Stop every process of a job (None: of all jobs) here; return what was stopped and what is still alive.

    ``force`` kills at once; otherwise the job has ``grace_s`` to exit.
    """
    found, left = _end(folder, name, grace_s, force=force)
    return {
        "ended": [_as_dict(process) for pid, process in sorted(found.items()) if pid not in left],
        "left": [_as_dict(process) for process in left.values()],
        "gpus": _gpus_in_use(bool(found)),
    }


def _end(
    folder: WaitFolder, name: str | None, grace_s: float, *, force: bool
) -> tuple[dict[int, Process], dict[int, Process]]:
    """Stop a job's processes here; return all that were found, and those that are still alive."""
    known = [record for record in job_records.records(folder) if name in (None, record.name)]
    found = {process.pid: process for process in job_records.processes(folder, name, known)}
    if not force:
        _stop_leaders(known)
        _await(folder, name, known, found, grace_s if _led(known) else 0.0)
        _signal_all(folder, name, known, found, signal.SIGTERM, _OBEY_S)
    left = _signal_all(folder, name, known, found, signal.SIGKILL, _KILL_S)
    _await_leaders(known)
    if not left:
        for record in known:
            job_records.forget(folder, record.name)
            with suppress(OSError):
                Path(record.group or "/nonexistent").rmdir()
    return found, left


def _stop_leaders(known: Iterable[JobRecord]) -> None:
    for record in known:
        leader = running.find(record.leader, started=record.leader_started)
        if leader is not None:
            running.end(leader, signal.SIGTERM)


def _led(known: Iterable[JobRecord]) -> bool:
    return any(record.leader_lives for record in known)


def _signal_all(
    folder: WaitFolder,
    name: str | None,
    known: list[JobRecord],
    found: dict[int, Process],
    number: signal.Signals,
    limit_s: float,
) -> dict[int, Process]:
    """Signal all live processes, repeatedly while new ones start; return those left after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    signalled: set[int] = set()
    while True:
        left = {process.pid: process for process in job_records.processes(folder, name, known)}
        found.update(left)
        for pid in left.keys() - signalled:
            running.end(left[pid], number)
            signalled.add(pid)
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_LOOK_S)


def _await(
    folder: WaitFolder, name: str | None, known: list[JobRecord], found: dict[int, Process], limit_s: float
) -> None:
    """Wait while the leaders stop their jobs."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and _led(known):
        left = {process.pid: process for process in job_records.processes(folder, name, known)}
        found.update(left)
        if not left:
            return
        time.sleep(_LOOK_S)


def _await_leaders(known: Iterable[JobRecord]) -> None:
    """Wait for leaders whose jobs are gone: they exit soon, and remove their records."""
    deadline = time.monotonic() + _OBEY_S
    while time.monotonic() < deadline and _led(known):
        time.sleep(_LOOK_S)


def gpus() -> tuple[Gpus, str]:
    """Return this node's GPUs, and any problem with their driver."""
    try:
        return nvml.read(sys_root=Path("/sys"), proc_root=Path("/proc")), ""
    except HardwareError as error:
        return Gpus(), error.message


def _gpus_in_use(expect_free: bool) -> dict[str, Any]:
    """Return the number of GPUs, and which processes use their memory."""
    deadline = time.monotonic() + (_GPU_S if expect_free else 0.0)
    while True:
        found, problem = gpus()
        held = usage_warnings(found.devices)
        if not held or time.monotonic() >= deadline:
            return {"count": len(found.devices), "held": held, "problem": problem}
        time.sleep(_LOOK_S)


def _as_dict(process: Process) -> dict[str, Any]:
    return {"pid": process.pid, "command": process.command}
