"""Logs of a failed launch → the root cause over all nodes, what it means and what to do.

It never claims more than its evidence: what no signature knows is "no known cause; this line may tell it: …".
Nothing here imports torch, and the signatures are read only when a log is.

From a log to the answer, each package below the next:

note                        what an answer notes besides, by id and values
lines                       bytes and lines
    opening                 a file's bytes, of a compressed one too
    sieve, broken_lines     of a big file the parts that may matter, found by grep
    scan, vocabulary        of these the lines that may matter
    unwrap                  lines that hold others
    host_names              which words name no machine
    line, prefixes, clock   a line taken apart: who wrote it, when, what it says; location_patterns
    literals                makes hundreds of patterns fast
messages                    what a message means
    signatures              known failures, from known/*.yaml
    exceptions, tracebacks  exceptions, put together from their lines
    frames, own_advice      what an exception's frames do, and what its message itself advises
    exception_rules         what to make of one that no signature knows
sources                     which files are logs, and of which node
reading                     one log
    reader                  reads it, and asks of each line:
        assembly            ... is it part of a traceback?
        endings, steps      ... does a launcher or a scheduler say how a process ended? batch, pods
        own_lines           ... is it this launcher's own?
        collectives         ... does it tell how far a rank is?
        homes, stated_host  ... does it tell on which host a rank, or all of it, runs?
        error_lines         ... does it say an error at all?
        mentions, quoted    ... or does it only speak of one?
        surroundings        ... or do the lines around it say so? code: a program's text
    log_events, events      what one log tells; claims, attempts: which of it its processes got over
answer                      verdict: the answer; place, fingerprint: what is in it; retry: if to try again
rank                        claims: all that could be the root cause, with its marks; weights: what a mark is
                            worth; judge: the verdict of the highest claim; beside: what is said beside it
hang_records                what the hang monitor left beside the logs
opinion                     what a language model makes of it, if the user asks
"""

from __future__ import annotations

from collections.abc import Iterable
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

__all__ = ["LogSource", "Verdict", "explain", "explain_file", "explain_paths"]


def explain(sources: Iterable[LogSource], oom_kills: int | None = None) -> Verdict:
    """Read logs, in constant memory, and return the verdict over all of them.

    ``oom_kills`` is the difference of ``oom_kill`` in the cgroup's memory.events over the run, which tells
    a kill for lack of memory from one from outside; None where nobody counted. Raises InputError for a log
    that cannot be read to its end.
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
            with OpenedLog(log) as stream:
                place = where_of_log(log)
                yield LogSource(
                    str(log),
                    stream,
                    place.node,
                    local_rank=place.local_rank,
                    rank=place.rank,
                    events=events_of(log),
                )

    return explain(opened(), oom_kills)


def explain_file(path: Path, oom_kills: int | None = None) -> Verdict:
    """Read one log, the supervisor's own for instance. Raises InputError if it cannot be read."""
    return explain_paths([path], oom_kills)
