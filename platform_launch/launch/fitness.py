"""Whether this node is fit for a job: the limits of its processes, and the quarantine of failed devices."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING

from platform_launch.environment import Environment
from platform_launch.errors import InputError, InstallationError, UnfitNodeError
from platform_launch.events import Event, event
from platform_launch.hardware import Gpu
from platform_launch.health import quarantine
from platform_launch.health.quarantine import (
    DEFAULT_S,
    FILE_VARIABLE,
    NODE_NAME_VARIABLE,
    QuarantinedNode,
    quarantined,
)
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from platform_launch.health.finding import NodeHealth

_FEWEST_FILES = 32
_FEWEST_THREADS = 16


def expect_limits() -> None:
    """Raise InstallationError if the limits on files, threads or processes are too low for a launch."""
    _expect_descriptors()
    _expect_threads()


def _expect_descriptors() -> None:
    may_be_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= may_be_open < _FEWEST_FILES:
        raise InstallationError(
            Phrase(
                "only {may_be_open} files may be open at a time (ulimit -n): expected at least {fewest}, and "
                "jobs need thousands",
                may_be_open=may_be_open,
                fewest=_FEWEST_FILES,
            ),
            "raise the limit of this container or shell, e.g. ulimit -n 65536",
        )


def _expect_threads() -> None:
    tried = Flag()
    threads = [Thread(target=tried.wait, daemon=True) for _ in range(_FEWEST_THREADS)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except RuntimeError as error:  # Python raises this for every limit
        raise InstallationError(
            Phrase(
                "only {started} more threads and processes can be started here: expected at least {fewest}, "
                "and jobs need hundreds",
                started=started,
                fewest=_FEWEST_THREADS,
            ),
            "raise the limit of this container (pids), of this user (ulimit -u), or of the memory that a "
            "process may address (ulimit -v)",
        ) from error
    finally:
        tried.set()


def node_name(env: Environment) -> str:
    """Return the scheduler's name for this machine, which differs from a pod's host name."""
    variable = env.text(NODE_NAME_VARIABLE) or env.text("SLURMD_NODENAME")
    return variable.value if variable is not None and variable.value else env.hostname


def quarantine_file(env: Environment, flag: Path | None) -> Path | None:
    """Return the file that a flag or a variable names."""
    variable = env.text(FILE_VARIABLE)
    return flag or (Path(variable.value) if variable is not None and variable.value else None)


def quarantine_entry(
    file: Path, env: Environment, gpus: Sequence[Gpu], report: Callable[[Event], None] | None = None
) -> QuarantinedNode | None:
    """Return the entry of this node or one of its GPUs, None without one. Raises InputError as read."""
    name = node_name(env)
    entries = quarantine.read(file, report=report)
    return quarantined(entries, {name: [gpu.uuid for gpu in gpus if gpu.uuid]}).get(name)


def refuse_if_quarantined(
    file: Path | None, env: Environment, gpus: Sequence[Gpu], report: Callable[[Event], None]
) -> None:
    """Raise UnfitNodeError if this node, or one of its GPUs, is in quarantine; InputError as read."""
    if file is None:
        return
    name = node_name(env)
    entry = quarantine_entry(file, env, gpus, report)
    if entry is not None:
        under = Phrase(", under the name {node}", node=entry.node) if entry.node != name else ""
        raise UnfitNodeError(
            Phrase(
                "node {name} is {held}{under} ({file})",
                name=name,
                held=entry.in_words(),
                under=under,
                file=file,
            ),
            Phrase(
                "use another node; `platform-launch doctor --release --quarantine {file}` there releases it",
                file=file,
            ),
        )


def quarantine_if_bad(
    file: Path | None, env: Environment, gpus: Sequence[Gpu], health: NodeHealth | None, job: str
) -> Event | None:
    """Put this node in quarantine for a day if it is bad; return the event that reports it."""
    if file is None or health is None or not health.bad:
        return None
    now, name = time.time(), node_name(env)
    uuids = tuple(gpu.uuid for gpu in gpus if f"GPU {gpu.index}" in health.devices)
    reason, sentence = "; ".join(health.reasons), health.sentence().document()
    try:
        quarantine.add(file, QuarantinedNode(name, now, now + DEFAULT_S, reason, job, uuids, sentence))
    except InputError as error:
        return event("not-quarantined", node_name=name, problem=error.message)
    return event("node-quarantined", node_name=name, until=quarantine.utc(now + DEFAULT_S), path=str(file))
