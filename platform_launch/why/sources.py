"""Where logs come from: files, folders, a stream."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.why.scan import Readable

# plan.py names logs so: train_<job>_node<rank>_<time>.log
_OUR_NAME = re.compile(r"train_(?P<job>.*)_node(?P<node>\d+)_(?P<started>\d{8}-\d{6})")
_NODE = re.compile(r"(?:^|[._-])node[._-]?(\d{1,6})(?:[._-]|$)")


@dataclass(frozen=True)
class LogSource:
    """One log. ``clock_offset_s`` is how far its clock is ahead of the others'."""

    name: str
    stream: Readable | Iterable[bytes]
    node: int | None = None
    clock_offset_s: float = 0.0


def node_of(name: str) -> int | None:
    """Return the node rank that a file's name tells."""
    stem = Path(name).stem
    found = _OUR_NAME.fullmatch(stem)
    if found:
        return int(found["node"])
    found = _NODE.search(stem)
    return int(found[1]) if found else None


def logs_in(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read: a folder stands for its ``*.log``, of this launcher's the latest launch.

    Raises InputError for what does not exist and for a folder without logs.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            logs = _latest(sorted(path.glob("*.log")))
            if not logs:
                raise InputError(
                    f"{path} holds no *.log: expected a folder of logs", "name the files themselves"
                )
            found += logs
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path} does not exist: expected a log or a folder of logs", "")
    return list(dict.fromkeys(found))


def _latest(logs: list[Path]) -> list[Path]:
    """Drop older launches: of each node the log that started last, and of jobs the one that did."""
    ours = [(found, log) for log in logs if (found := _OUR_NAME.fullmatch(log.stem))]
    if not ours:
        return logs
    job = max(ours, key=lambda one: one[0]["started"])[0]["job"]
    latest: dict[int, Path] = {}
    for found, log in sorted(ours, key=lambda one: one[0]["started"]):
        if found["job"] == job:
            latest[int(found["node"])] = log
    return [latest[node] for node in sorted(latest)]
