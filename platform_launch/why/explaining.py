"""Logs of a failed launch → the verdict over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.text import Phrase
from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.lines.opening import MOST_UNPACKED_MIB, OpenedLog
from platform_launch.why.messages.signatures import catalogue
from platform_launch.why.note import Note, note
from platform_launch.why.rank.judge import judge
from platform_launch.why.reading.events import NodeEvents
from platform_launch.why.reading.reader import LogReader
from platform_launch.why.sources import LogSource, events_of, logs_in, where_of_log

_MOST_LAST_LINES = 8


def explain(sources: Iterable[LogSource], oom_kills: int | None = None) -> Verdict:
    """Read logs, in constant memory, and return the verdict over all of them.

    ``oom_kills`` is the difference of ``oom_kill`` in the cgroup's memory.events over the run, which tells an
    out-of-memory kill from one from outside; None if it was not counted. Raises InputError for a log that
    cannot be read to its end.
    """
    nodes: list[NodeEvents] = []
    names: list[str] = []
    remarks: list[Note] = []
    last_lines: list[Note] = []
    for source in sources:
        names.append(source.name)
        try:
            reader = LogReader(source, catalogue())
            nodes += reader.read()
            remarks += reader.remarks()
            if isinstance(source.stream, OpenedLog) and source.stream.cut:
                remarks.append(note("unpacked-in-part", log=source.name, mib=MOST_UNPACKED_MIB))
            last_lines += reader.last_line()
        except OSError as error:
            raise InputError(
                Phrase("{name} cannot be read: {problem}", name=source.name, problem=error.strerror)
            ) from error
    verdict = judge(nodes, catalogue(), oom_kills)
    if verdict.kind == "nothing":
        remarks += last_lines[:_MOST_LAST_LINES]
    return replace(verdict, logs=tuple(names)).with_notes(remarks)


def explain_paths(paths: Iterable[Path], oom_kills: int | None = None, job: str | None = None) -> Verdict:
    """Read files and folders, in a folder of this launcher's logs only those of ``job`` if it is given.

    Raises InputError for what cannot be read.
    """
    logs = logs_in(list(paths), job)

    def opened() -> Iterable[LogSource]:
        for log in logs:
            with closing(OpenedLog(log)) as stream:
                yield LogSource(str(log), stream, where_of_log(log), events=events_of(log))

    return explain(opened(), oom_kills)


def explain_file(path: Path, oom_kills: int | None = None) -> Verdict:
    """Read one log, the supervisor's own for instance. Raises InputError if it cannot be read."""
    return explain_paths([path], oom_kills)
