"""The logs of one launch: the files, their nodes and events, and where the root cause is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.events import Event
from platform_launch.project import logs_folder
from platform_launch.text import Phrase
from platform_launch.topology import node_prefix
from platform_launch.why.sources import events_of, logs_in, node_of, started_of

# With one of these, a launcher has reported the end of the job; only the record and the log's name follow.
CLOSING = frozenset(
    [
        "training-finished",
        "training-failed",
        "training-killed",
        "training-stopped",
        "training-followed",
        "launch-left",
        "nodes-absent",
        "nodes-disagree",
        "nodes-misplaced",
        "other-node-refused",
        "launch-refused",
    ]
)


@dataclass(frozen=True)
class NodeLog:
    """One log. ``label`` names it if several are shown and the line itself does not name its node."""

    path: Path
    node: int | None
    label: str
    began: datetime | None

    def events(self) -> tuple[Event, ...]:
        """Return its launcher's events so far; empty if unknown."""
        return events_of(self.path) or ()

    @property
    def has_ended(self) -> bool:
        """Return whether its launcher has reported how the job ended, or why it did not start."""
        return any(event.id in CLOSING or event.id.startswith("refused-") for event in self.events())


@dataclass(frozen=True)
class CauseLine:
    """A line of a log, and the verdict that names it."""

    log: str
    number: int
    verdict: Event


def find_logs(names: Sequence[str], folder: Path | None = None) -> list[NodeLog]:
    """Return the logs for names: files, folders (the newest launch in each) or jobs.

    Without a name: the newest launch in ``folder``, which is also searched for jobs (default: the project's).

    Raises InputError for any other name.
    """
    folder = folder or logs_folder()
    paths: list[Path] = []
    if not names and not folder.exists():
        raise InputError(
            Phrase("no logs yet: the folder {folder} does not exist", folder=folder),
            "name the logs, or the folder passed to `run --log-dir`: platform-launch logs --log-dir FOLDER",
        )
    for name in names or (str(folder),):
        if Path(name).exists():
            paths += logs_in([Path(name)])
        elif not folder.is_dir():
            raise InputError(
                Phrase(
                    "{name!r} is not a file, and the log folder {folder} does not exist",
                    name=name,
                    folder=folder,
                ),
                "name the log files: platform-launch logs FILE…",
            )
        elif "/" in name:
            raise InputError(
                Phrase("{name} does not exist: expected a log, a folder of logs or a job's name", name=name),
                Phrase("the names of jobs are those of the logs in {folder}", folder=folder),
            )
        else:
            paths += logs_in([folder], job=name)
    return [_node_log(path) for path in dict.fromkeys(paths)]


def _node_log(path: Path) -> NodeLog:
    node = node_of(path.name)
    label = f"[{path.stem}] " if node is None else node_prefix(node)
    return NodeLog(path, node, label, started_of(path))


def missing_nodes(logs: Sequence[NodeLog]) -> list[int]:
    """Return the nodes of the launch without a log here, as far as the others' events show."""
    counts = [
        count
        for log in logs
        for event in log.events()
        if event.id == "launch-opened" and isinstance(count := event.fields.get("nnodes"), int)
    ]
    here = {log.node for log in logs}
    return [node for node in range(min(max(counts, default=0), 1 << 16)) if node not in here]


def root_cause_line(logs: Sequence[NodeLog]) -> CauseLine | None:
    """Return the line of the launch's verdict, on the node that failed first.

    Comes from the events; None until a launcher has a verdict, or if the verdict names no line.
    """
    verdicts, failed = [], None
    for log in logs:
        for event in log.events():
            if event.id == "verdict":
                verdicts.append(event)
            elif event.id == "node-failed" and failed is None:
                failed = event.fields.get("node")
    verdicts.sort(key=lambda event: (event.node_rank != failed, event.time))
    return next((place for event in verdicts for place in _places(event)), None)


def _places(verdict: Event) -> Iterator[CauseLine]:
    evidence = verdict.fields.get("evidence")
    for one in evidence if isinstance(evidence, list) else ():
        if isinstance(one, dict) and isinstance(one.get("log"), str) and isinstance(one.get("line"), int):
            yield CauseLine(Path(one["log"]).name, one["line"], verdict)
