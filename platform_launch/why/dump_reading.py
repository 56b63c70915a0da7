"""What ``why`` reports about the flight recorder dumps among its paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from platform_launch.console.languages import translate
from platform_launch.errors import InputError
from platform_launch.observe.collectives import WaitReport, compare, ranks_named
from platform_launch.observe.dumps import (
    RankTrace,
    find_dumps,
    last_job,
    looks_like_dump,
    read_dump,
)
from platform_launch.observe.words import message
from platform_launch.text import Phrase, counted, padded
from platform_launch.why.sources import logs_in


@dataclass(frozen=True)
class DumpReading:
    """The dumps found, by rank, what they show, and why some could not be read.

    ``older`` are dumps of an earlier job, which are ignored.
    """

    dumps: dict[int, Path]
    report: WaitReport
    unreadable: tuple[str, ...]
    older: dict[int, Path] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the part of the JSON output about dumps."""
        return {
            "suspect_ranks": list(self.report.suspect_ranks),
            "missing_ranks": list(self.report.missing_ranks),
            "waiting": [waiting.as_dict() for waiting in self.report.waiting],
            "dumps": {str(rank): str(path) for rank, path in sorted(self.dumps.items())},
            "unreadable_dumps": list(self.unreadable),
            "older_dumps": {str(rank): str(path) for rank, path in sorted(self.older.items())},
        }

    def lines(self) -> list[str]:
        """Return the answer for a terminal, one fact per line."""
        report = self.report
        nobody = Phrase(
            "none: no rank waits for another in the dumps of {ranks}", ranks=counted(len(self.dumps), "rank")
        )
        suspects = _named(report.suspect_ranks) if report.suspect_ranks else nobody
        facts: list[tuple[str, str]] = [(Phrase("suspects:"), suspects)]
        telling = [w for w in report.waiting if {*w.behind, *w.stopped, *w.differ} & {*report.suspect_ranks}]
        facts += [(Phrase("waiting:"), message(waiting.sentence())) for waiting in telling or report.waiting]
        if telling and len(telling) < len(report.waiting):
            more = Phrase("{more} more (--format json names them)", more=len(report.waiting) - len(telling))
            facts.append((Phrase("besides:"), more))
        if report.missing_ranks:
            facts.append((Phrase("no dump:"), _named(report.missing_ranks)))
        facts += [(Phrase("unreadable:"), problem) for problem in self.unreadable]
        if self.older:
            left_out = Phrase("dumps of an earlier job, left out: {who}", who=_named(self.older))
            facts.append((Phrase("older:"), left_out))
        return [
            f"{padded(translate(label), 11)} {translate(Phrase('{text}', text=text))}"
            for label, text in facts
        ]


def part(paths: Iterable[str]) -> tuple[DumpReading | None, tuple[str, ...]]:
    """Read the dumps among the paths, and in folders; return them, and the paths with logs.

    Raises InputError like :func:`read`.
    """
    dumps, logs = list[Path](), list[str]()
    for path in map(Path, paths):
        holds_dumps = bool(find_dumps([path])) if path.is_dir() else path.is_file() and looks_like_dump(path)
        if holds_dumps:
            dumps.append(path)
        if not holds_dumps or (path.is_dir() and _holds_logs(path)):
            logs.append(str(path))
    return read(dumps) if dumps else None, tuple(logs)


def read(paths: Sequence[Path]) -> DumpReading:
    """Read the dumps of the last job. A dump that cannot be read is named and not used.

    Raises InputError if a file's name does not end with its rank.
    """
    dumps = find_dumps(paths)
    nameless = next((path for path in paths if path.is_file() and path not in dumps.values()), None)
    if nameless is not None:
        raise InputError(
            Phrase(
                "{path} is a flight recorder dump of an unknown rank: expected a name that ends "
                "with its rank, each rank once (…_rank7, …7.json)",
                path=nameless,
            ),
            "rename it, or name the folder that holds all dumps of the launch",
        )
    traces: dict[int, RankTrace] = {}
    problems: list[str] = []
    for rank, path in dumps.items():
        try:
            traces[rank] = read_dump(path, rank)
        except InputError as error:
            problems.append(error.message)
        except OSError as error:
            problems.append(str(error))
    last = last_job(traces)
    older = {rank: path for rank, path in dumps.items() if rank in traces and rank not in last}
    unreadable = set(dumps) - set(traces)
    kept = {rank: path for rank, path in dumps.items() if rank not in older}
    traces = {rank: trace for rank, trace in traces.items() if rank in last}
    report = compare(traces, max(kept, default=-1) + 1, unreadable)
    return DumpReading(kept, report, tuple(problems), older)


def _named(ranks: Iterable[int]) -> Phrase:
    return message(ranks_named(ranks))


def _holds_logs(folder: Path) -> bool:
    try:
        return bool(logs_in([folder]))
    except InputError:
        return False
