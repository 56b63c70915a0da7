"""Where logs come from: files, folders, a stream; and what their names mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from platform_launch.errors import InputError, shown_list
from platform_launch.events import Event, beside, read
from platform_launch.text import Phrase, joined
from platform_launch.why.lines.line import NOWHERE, Location
from platform_launch.why.lines.location_patterns import FILE_NODE, FILE_RANK
from platform_launch.why.lines.opening import holds_no_text
from platform_launch.why.lines.scan import Readable

# The names that plan/launch_plan.py gives to logs: train_<job>_node<rank>_<time>.log; -2 for a second
# launcher.
_OUR_NAME = re.compile(r"train_(?P<job>.*)_node(?P<node>\d+)_(?P<started>\d{8}-\d{6})(?:-\d{1,2})?")
# torchrun --log-dir: <run id>/attempt_<n>/<local rank>/stderr.log
_ATTEMPT = re.compile(r"attempt_(\d+)")
_PACKED = (".gz", ".xz", ".bz2", ".zst")
# Slurm's, PBS's and Grid Engine's names (train.e123, train.o123), and those of captured commands.
_LOG_NAME = re.compile(
    r".*\.(?:log|out|err|txt|[eo]\d+|[eo]\d+[.-]\d+|log\.\d+)$|(?:dmesg|sacct|scontrol|messages|syslog)\b.*|std(?:out|err)$"
)


@dataclass(frozen=True)
class LogSource:
    """One log. ``where`` is the place that its name gives, ``clock_offset_s`` how far its clock is ahead of
    the others'.

    ``events`` are those of the launch that wrote it, None if they are not known.
    """

    name: str
    stream: Readable
    where: Location = NOWHERE
    clock_offset_s: float = 0.0
    events: tuple[Event, ...] | None = None


def node_of(name: str) -> int | None:
    """Return the node rank in a file's name."""
    if (ours := _our_name(Path(name))) is not None:
        return int(ours["node"])
    found = FILE_NODE.search(Path(_unpacked_name(name)).stem)
    return int(found[1]) if found else None


def job_of(name: str) -> str | None:
    """Return the job in the name of one of our logs."""
    found = _our_name(Path(name))
    return found["job"] if found else None


def started_of(path: Path) -> datetime | None:
    """Return when a launch of ours began by its node's clock, from its log's name."""
    found = _our_name(path)
    if found is None:
        return None
    try:
        return datetime.strptime(found["started"], "%Y%m%d-%H%M%S")
    except ValueError:
        return None


def where_of_log(path: Path) -> Location:
    """Return the place that a path gives: the node, the rank, or torchrun's folder of a local rank."""
    attempt = path.parent.parent.name
    local_rank = int(path.parent.name) if _ATTEMPT.fullmatch(attempt) and path.parent.name.isdigit() else None
    rank = FILE_RANK.search(Path(_unpacked_name(path.name)).stem)
    return Location(node=node_of(path.name), rank=int(rank[1]) if rank else None, local_rank=local_rank)


def events_of(log: Path) -> tuple[Event, ...] | None:
    """Return the events of the launch that wrote a log, None if they are not beside it."""
    found = read(beside(log))
    return None if found is None else tuple(found)


def logs_in(paths: Sequence[Path], job: str | None = None) -> list[Path]:
    """Return the files to read: a folder stands for its logs; of this launcher's logs only the latest launch.

    Raises InputError for a missing path and for a folder without logs.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _of_folder(path, job)
        elif path.exists():
            found.append(path)
        else:
            raise InputError(
                Phrase("{path} does not exist: expected a log or a folder of logs", path=path), ""
            )
    return list(dict.fromkeys(found))


def _of_folder(folder: Path, job: str | None) -> list[Path]:
    here = sorted(path for path in folder.iterdir() if path.is_file() and _is_log(path))
    if ours := [path for path in here if _our_name(path)]:
        return _latest(ours, job, folder)
    problem = Phrase("{folder} contains no log of this launcher's jobs", folder=folder)
    if job is None:
        logs = here + _of_torchrun(folder)
        logs = logs or sorted(path for path in folder.glob("*/*") if path.is_file() and _is_log(path))
        if readable := [log for log in logs if not holds_no_text(log)]:
            return readable
        problem = Phrase(
            "{folder} contains no log: expected *.log, *.out, *.err or *.txt, perhaps compressed",
            folder=folder,
        )
        if logs:
            names = shown_list([log.name for log in logs])
            problem = Phrase(
                "the files named like logs in {folder} are binary: {names}", folder=folder, names=names
            )
    raise InputError(problem, "pass the files themselves")


def jobs_in(folder: Path) -> list[str]:
    """Return the jobs of this launcher whose logs are in a folder."""
    return sorted({found["job"] for path in folder.iterdir() if _is_log(path) and (found := _our_name(path))})


def _is_log(path: Path) -> bool:
    return not path.name.startswith(".") and _LOG_NAME.match(_unpacked_name(path.name)) is not None


def _unpacked_name(name: str) -> str:
    return name.removesuffix(Path(name).suffix) if Path(name).suffix in _PACKED else name


def _our_name(path: Path) -> re.Match[str] | None:
    return _OUR_NAME.fullmatch(Path(_unpacked_name(path.name)).stem)


def _of_torchrun(folder: Path) -> list[Path]:
    """Return the outputs of the latest attempt of the latest run in a torchrun log folder."""
    attempts: dict[Path, list[tuple[int, Path]]] = {}
    for depth in ("", "*/", "*/*/"):
        for attempt in folder.glob(f"{depth}attempt_*"):
            number = _ATTEMPT.fullmatch(attempt.name)
            if number and attempt.is_dir():
                attempts.setdefault(attempt.parent, []).append((int(number[1]), attempt))
    if not attempts:
        return []
    run = max(attempts, key=lambda parent: (parent.stat().st_mtime, parent.name))
    latest = max(attempts[run])[1]
    return sorted(latest.glob("*/std*.log")) + sorted(latest.glob("*/std*.log.*"))


def _latest(logs: list[Path], job: str | None, folder: Path) -> list[Path]:
    """Drop older launches: keep the last log of each node, and the job that is named or started last."""
    ours = [(found, log) for log in logs if (found := _our_name(log))]
    names = sorted({found["job"] for found, _ in ours})
    if job is None:
        job = max(ours, key=lambda one: one[0]["started"])[0]["job"]
    elif job not in names:
        raise InputError(
            Phrase(
                "{folder} contains no log of job {job!r}, only of {names}",
                folder=folder,
                job=job,
                names=joined(names),
            ),
            "",
        )
    launches: dict[int, list[tuple[str, Path]]] = {}
    for found, log in ours:
        if found["job"] == job:
            launches.setdefault(int(found["node"]), []).append((found["started"], log))
    latest = {node: max(started for started, _ in logs) for node, logs in launches.items()}
    kept = [one for node in sorted(launches) for one in launches[node] if one[0] == latest[node]]
    masters = {log: _master_of(log) for _, log in kept}
    master = masters[max(kept)[1]]
    return [log for _, log in kept if None in (master, masters[log]) or masters[log] == master]


def _master_of(log: Path) -> object:
    """Return the rendezvous of the launch, which distinguishes launches with the same job name."""
    opened = (event for event in events_of(log) or () if event.id == "launch-opened")
    return next((event.fields.get("master") for event in opened), None)
