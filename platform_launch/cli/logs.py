"""``platform-launch logs``: the merged logs of a launch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from platform_launch import streams
from platform_launch.cli import completion
from platform_launch.cli.flags import log_dir_option
from platform_launch.cli.options import lang_option
from platform_launch.console import STDOUT, Console
from platform_launch.console.screen import Screen
from platform_launch.errors import InputError, UsageError
from platform_launch.events import event
from platform_launch.log_view.follow import followed
from platform_launch.log_view.launch import NodeLog, find_logs, missing_nodes, root_cause_line
from platform_launch.log_view.merge import Shown, merged, opened
from platform_launch.log_view.selection import Selection, parse_pattern
from platform_launch.log_view.view import LogView
from platform_launch.rendezvous.ranks import compact, describe_nodes, parse_ranks
from platform_launch.text import Phrase

# How often to look for the first log.
_PAUSE_S = 0.5

_STANDARD_INPUT = NodeLog(Path("-"), None, "", None)


@click.command("logs")
@click.argument(
    "names",
    nargs=-1,
    type=click.Path(readable=False),
    metavar="[JOB|LOG…|-]",
    shell_complete=completion.jobs_or_files,
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Wait for the first log, and show new lines as they are written until all nodes end.",
)
@click.option("--node", "nodes", metavar="N", help="Only these nodes: 3, 0,2 or 0-3,7.")
@click.option(
    "--level",
    type=click.Choice(["INFO", "WARN", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Only lines of this level or worse; of a traceback, only the line with the exception.",
)
@click.option("--grep", "pattern", metavar="REGEX", help="Only lines that match this; (?i) ignores case.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="LINES", help="Only the last lines.")
@log_dir_option
@lang_option
def command(
    names: tuple[str, ...],
    *,
    follow: bool,
    nodes: str | None,
    level: str,
    pattern: str | None,
    tail: int | None,
    log_dir: Path | None,
) -> int:
    """Show the logs of a launch, merged by time, with the root cause of a failure marked.

    Without an argument: the newest launch in the log folder. JOB is a job's name, LOG a file (also .gz,
    .xz, .bz2 or .zst) or a folder of logs; - reads standard input. Lines without a time stay below the
    line before them.

    platform-launch logs my-job --follow --node 0

    platform-launch logs --level WARN
    """
    selection = Selection(level.upper(), parse_pattern(pattern) if pattern is not None else None)
    colours = Screen(STDOUT).styled
    if "-" in names:
        if len(names) > 1 or follow:
            raise UsageError("- reads standard input: expected no other log and no --follow")
        stdin = (_STANDARD_INPUT, streams.input_bytes())
        view = LogView(colours=colours, labelled=False, cause=None)
        _report_if_none(selection, _write(merged([stdin], selection, tail), view))
        return 0

    chosen = parse_ranks(nodes) if nodes is not None else None

    def wanted(logs: Iterable[NodeLog]) -> list[NodeLog]:
        return [log for log in logs if chosen is None or log.node in chosen]

    launch = _first_logs(names, log_dir) if follow else find_logs(names, log_dir)
    logs = wanted(launch)
    absent = [node for node in missing_nodes(launch) if chosen is None or node in chosen]
    if not logs and not follow:
        known = compact(log.node for log in launch if log.node is not None)
        raise InputError(
            Phrase(
                "no log of node {nodes}: expected one of {known}",
                nodes=nodes,
                known=known or Phrase("logs that name no node"),
            )
        )
    view = LogView(colours=colours, labelled=len(logs) + len(absent) > 1, cause=root_cause_line(launch))
    if absent:
        where = Phrase("waiting for them") if follow else Phrase("look for them on those nodes")
        Console().warn(Phrase("no logs of {nodes} here: {where}", nodes=describe_nodes(absent), where=where))
    with ExitStack() as files:
        if follow:
            found = _write(
                followed(lambda: wanted(find_logs(names, log_dir)), selection, tail), view, at_once=True
            )
        else:
            found = _write(merged(opened(logs, files), selection, tail), view)
    closing = view.closing(root_cause_line(find_logs(names, log_dir)))
    if closing:
        click.echo(closing)
    _report_if_none(selection, found)
    return 0


def _first_logs(names: Sequence[str], log_dir: Path | None) -> list[NodeLog]:
    """Return the logs as soon as there is one. Raises InputError for a path that does not exist."""
    reported = False
    while True:
        try:
            return find_logs(names, log_dir)
        except InputError as error:
            if any("/" in name for name in names):
                raise
            if not reported:
                Console().warn(Phrase("{problem}: waiting for the first log", problem=error.message))
                reported = True
        time.sleep(_PAUSE_S)


def _report_if_none(selection: Selection, found: bool) -> None:
    if not found and not selection.selects_all:
        Console().report(event("no-line-matches"))


def _write(shown: Iterable[Shown], view: LogView, *, at_once: bool = False) -> bool:
    """Write lines, each at once with ``at_once`` (until Ctrl-C). Return whether there were any."""
    out, found = sys.stdout.buffer, False
    try:
        for one in shown:
            found = True
            for line in view.lines(one):
                out.write(line.encode(errors="backslashreplace") + b"\n")
            if at_once:
                out.flush()
        out.flush()
    except KeyboardInterrupt:
        if not at_once:
            raise
    return found
