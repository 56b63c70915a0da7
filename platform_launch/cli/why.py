"""``platform-launch why``: the root cause in the logs of a failed launch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from platform_launch import streams
from platform_launch.cli import completion
from platform_launch.cli.flags import json_or_table, log_dir_option
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import print_json
from platform_launch.console.languages import current, translate
from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError, shown_list
from platform_launch.observe.memory_snapshot import MemorySnapshot, find_snapshots, read_snapshot
from platform_launch.project import logs_folder
from platform_launch.text import Phrase, padded
from platform_launch.why import dump_reading, hang_records
from platform_launch.why.answer.verdict import Verdict, label
from platform_launch.why.dump_reading import DumpReading
from platform_launch.why.explaining import explain, explain_paths
from platform_launch.why.hang_records import HangRecord
from platform_launch.why.sources import LogSource, logs_in, started_of

_MOST_SNAPSHOTS = 4


@click.command("why")
@click.argument("logs", nargs=-1, type=click.Path(readable=False), metavar="[LOG…|-]")
@click.option(
    "--job",
    metavar="NAME",
    shell_complete=completion.names(completion.jobs),
    help="Read the newest launch of this job, with the logs of all its nodes that are there.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Also ask the language model at PLATFORM_LAUNCH_EXPLAIN_URL; sends it masked lines of the logs.",
)
@log_dir_option
@json_or_table
@lang_option
def command(logs: tuple[str, ...], job: str | None, explain: bool, log_dir: Path | None, form: str) -> int:
    """Find the root cause over all nodes and ranks, and what to do about it.

    LOG is a file (also .gz, .xz, .bz2 or .zst), or a folder of logs (the latest launch of each node); - reads
    standard input. Without LOG: the newest launch in the log folder. Dumps of torch's flight recorder and
    records of the hang monitor, with or without logs, show which ranks the others wait for.

    kubectl logs -l job-name=NAME --prefix --tail=-1 | platform-launch why -
    """
    if explain and "-" in logs:
        raise UsageError("--explain reads files: expected no standard input", "name the logs")
    if logs and log_dir is not None:
        raise UsageError(
            Phrase(
                "--log-dir {log_dir} and {logs}: expected one of them",
                log_dir=log_dir,
                logs=shown_list(logs),
            ),
            "name the folder alone",
        )
    if log_dir is not None:
        logs = (str(log_dir),)
    hang, logs = hang_records.part(logs) if "-" not in logs else (None, logs)
    alone = hang is not None and not logs
    dumped, logs = dump_reading.part(logs) if not (alone or "-" in logs) else (None, logs)
    verdict = _explain(logs, job) if logs or (dumped is None and not alone) else None
    if hang is None and verdict is not None and "-" not in logs:
        hang = hang_records.beside_logs(_folders(logs), job)
    hung = hang is not None and hang.kind != "busy" and (verdict is None or verdict.kind == "nothing")
    extra, opinion_lines = _opinion(verdict, logs, job) if explain and verdict is not None else ({}, [])
    snapshots = _snapshots(logs, job) if verdict is not None and "-" not in logs else []
    if form == "json":
        if snapshots:
            extra = {**extra, "memory_snapshots": [one.as_dict() for one in snapshots]}
        print_json(_document(verdict, dumped, hang) | ({"kind": "hang"} if hung else {}) | extra)
    else:
        for report in (dumped, hang):
            for line in report.lines() if report else ():
                click.echo(line)
        lines = verdict.lines() if verdict else []
        if hung:
            del lines[:1]  # the hang is the answer; only notes follow the headline
        title = padded(translate(Phrase("memory:")), 11)
        held = [f"{title} {translate(one.line())}" for one in snapshots[:_MOST_SNAPSHOTS]]
        for line in (*lines, *held, *opinion_lines):
            click.echo(line)
    return 0


def _snapshots(logs: tuple[str, ...], job: str | None) -> list[MemorySnapshot]:
    """Read the memory snapshots of this launch's ranks that ran out of GPU memory, if they can be read."""
    read_logs = logs_in(_folders(logs), job)
    started = [f"{at:%Y%m%d-%H%M%S}" for log in read_logs if (at := started_of(log)) is not None]
    found = []
    for rank, path in find_snapshots((log.parent for log in read_logs), started):
        with suppress(InputError, OSError):
            found.append(read_snapshot(path, rank))
    return found


def _opinion(verdict: Verdict, logs: tuple[str, ...], job: str | None) -> tuple[dict[str, object], list[str]]:
    """Return a model's opinion of a failure, or why there is none: in JSON form, and for a terminal."""
    from platform_launch.why import opinion  # HTTP and TLS take a while to import

    endpoint = opinion.ModelEndpoint.of(Environment.of_this_process())
    if verdict.kind == "finished":
        return {}, []
    try:
        given = opinion.opinion(endpoint, opinion.material(verdict, logs_in(_folders(logs), job)))
    except opinion.OpinionError as error:
        problem = translate(error.message)
        none = translate(Phrase("none: {problem}", problem=error.message))
        return {"opinion": {"error": problem}}, [f"{label('opinion', current())} {none}"]
    return {"opinion": given.as_dict()}, given.lines()


def _document(
    verdict: Verdict | None, dumped: DumpReading | None, hang: HangRecord | None
) -> dict[str, object]:
    """Return the JSON form. ``suspect_ranks`` come from the dumps, otherwise from the hang's record."""
    document: dict[str, object] = dict(verdict.as_dict()) if verdict else {}
    if hang is not None:
        document |= {"suspect_ranks": list(hang.suspect_ranks), "hang": hang.as_dict()}
    return document | (dumped.as_dict() if dumped else {})


def _explain(logs: tuple[str, ...], job: str | None) -> Verdict:
    if "-" not in logs:
        return explain_paths(_folders(logs), job=job)
    if len(logs) > 1 or job is not None:
        raise UsageError("- reads standard input: expected no other log and no --job", "")
    return explain([LogSource("-", streams.input_bytes())])


def _folders(logs: tuple[str, ...]) -> list[Path]:
    if logs:
        return [Path(log) for log in logs]
    folder = logs_folder()
    if not folder.exists():
        raise InputError(
            Phrase("no logs yet: the folder {folder} does not exist", folder=folder),
            "name the logs, or the folder passed to `run --log-dir`: platform-launch why --log-dir FOLDER",
        )
    return [folder]
