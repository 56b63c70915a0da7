"""``platform-launch profile``: run torch's profiler on all ranks of a running job for some seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import click

from platform_launch.cli.flags import seconds as seconds_option
from platform_launch.cli.inspect import chosen_launch
from platform_launch.cli.options import lang_option
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.errors import InputError, LaunchError, UsageError
from platform_launch.observe import control
from platform_launch.observe.merged_trace import TracePart, merge
from platform_launch.rendezvous.ranks import parse_ranks
from platform_launch.text import Phrase, counted

# Some ranks wait in C, traces may be large, and nodes send them.
_LIMIT_S = 900.0
_MOST_SECONDS = 60.0


@click.command("profile")
@click.argument("job", required=False)
@seconds_option("--seconds", "seconds", least=0.1, default=5.0, text="How long to record.")
@click.option("--ranks", metavar="0,8-15", help="Only these ranks (default: all).")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.json.gz",
    help="Default: next to the job's log.",
)
@lang_option
def command(seconds: float, ranks: str | None, output: Path | None, job: str | None) -> int:
    """Profile all ranks of a running job with torch's profiler, and write one trace for Perfetto.

    Open it at https://ui.perfetto.dev. The job continues, a little slower while it is profiled.
    JOB is its name, its launcher's pid or its log; if this user runs one job here, it may be omitted.
    """
    if seconds > _MOST_SECONDS:
        raise UsageError(
            Phrase("expected at most {most:g} s, found {seconds:g}", most=_MOST_SECONDS, seconds=seconds)
        )
    chosen = sorted(parse_ranks(ranks)) if ranks is not None else []
    socket, inspected = chosen_launch(job)
    path = output or _next_to(str(inspected.get("log") or ""))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = control.ask(socket, _LIMIT_S, do="profile", seconds=seconds, ranks=chosen)
    except (OSError, ValueError) as error:
        raise LaunchError(
            Phrase("the launch on this machine does not answer: {problems}", problems=str(error))
        ) from error
    found = answer.get("traces") if answer is not None else None
    traces = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    _report(traces, path, written=_merged(traces, path))
    return 0


def _merged(traces: Sequence[Mapping[str, object]], path: Path) -> int:
    """Write the merged trace and remove its parts; return its number of ranks."""
    parts = [
        TracePart(
            int(str(one["rank"])),
            int(str(one["node_rank"])),
            str(one["host"]),
            Path(str(one["path"])),
            float(str(one["offset_s"])),
        )
        for one in traces
        if one.get("path")
    ]
    try:
        if parts:
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                merge(sorted(parts, key=lambda part: part.rank), partial)
                partial.replace(path)
            except OSError as error:
                raise InputError(
                    Phrase(
                        "{path} cannot be written: {problem}", path=path, problem=error.strerror or str(error)
                    )
                ) from error
            finally:
                partial.unlink(missing_ok=True)
    finally:
        for part in parts:
            part.path.unlink(missing_ok=True)
    return len(parts)


def _report(traces: Sequence[Mapping[str, object]], path: Path, *, written: int) -> None:
    for one in traces:
        if one.get("problem"):
            who = "node {node} ({host})" if one.get("rank") is None else "rank {rank} (node {node}, {host})"
            values = {"rank": one.get("rank"), "node": one["node_rank"], "host": one["host"]}
            Console().warn(
                Phrase("{who}: {problem}", who=Phrase(who, **values), problem=Phrase(str(one["problem"])))
            )
    if not written:
        raise LaunchError(
            Phrase("no rank could be profiled"), "platform-launch inspect shows what the ranks are doing"
        )
    line = Phrase(
        "{path}: {ranks}; open it at https://ui.perfetto.dev", path=path, ranks=counted(written, "rank")
    )
    click.echo(translate(line))


def _next_to(log: str) -> Path:
    folder, stem = (Path(log).parent, Path(log).stem) if log else (Path(), time.strftime("%Y%m%d-%H%M%S"))
    return next(path for n in count(1) if not (path := folder / f"{stem}.profile{n}.json.gz").exists())
