"""``platform-launch why``: the first cause in the logs of a failed launch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from platform_launch.errors import UsageError
from platform_launch.why import LogSource, Verdict, explain, explain_paths


@click.command("why")
@click.argument("logs", nargs=-1, metavar="LOG…|-")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(logs: tuple[str, ...], form: str) -> int:
    """Name the first cause over all nodes and ranks, and what to do.

    LOG is a file, or a folder of logs (of each node the latest launch); - reads standard input:

    kubectl logs -l job-name=NAME --prefix --tail=-1 | platform-launch why -
    """
    verdict = _explain(logs)
    if form == "json":
        click.echo(json.dumps(verdict.as_dict(), indent=2, ensure_ascii=False))
    else:
        for line in verdict.lines():
            click.echo(line)
    return 0


def _explain(logs: tuple[str, ...]) -> Verdict:
    if not logs:
        raise UsageError("no log given: expected files, a folder or -", "platform-launch why logs/")
    if "-" not in logs:
        return explain_paths(Path(log) for log in logs)
    if len(logs) > 1:
        raise UsageError("- stands alone: expected no other log beside standard input", "")
    return explain([LogSource("-", sys.stdin.buffer)])
