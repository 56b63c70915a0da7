"""``procguard ctl logs``: the last lines of a worker's or group's log, a search in it, and new lines."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from platform_launch.cli.output import print_json
from platform_launch.cli.procguard.ctl.client import GROUPS, WORKERS, ApiClient, connected, segment
from platform_launch.cli.procguard.ctl.tables import local
from platform_launch.console.languages import translate
from platform_launch.errors import UsageError
from platform_launch.text import Phrase, escaped, joined

_AGAIN_S = 1.0
_LIMIT = 5_000  # lines per answer


@click.command()
@click.argument("worker", required=False, shell_complete=WORKERS)
@click.option("--group", metavar="NAME", shell_complete=GROUPS, help="All ranks of a group, merged by time.")
@click.option("--errors", is_flag=True, help="Only lines that look like errors.")
@click.option("-f", "--follow", is_flag=True, help="Also print new lines, until Ctrl-C.")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Number of last lines.",
)
@click.option(
    "--run", "number", type=click.IntRange(1), metavar="RUN", help="Which run (default: the newest)."
)
@click.option("--search", metavar="TEXT", help="Only lines that contain this, with their numbers.")
@click.option("--regex", is_flag=True, help="--search is a regular expression (RE2).")
@click.option("--context", type=click.IntRange(0, 20), default=0, help="Lines of context around each match.")
@click.option("--ranks", metavar="RANKS", help="With --group: only these ranks, such as 0-3,7.")
@connected
def logs(
    client: ApiClient,
    worker: str | None,
    group: str | None,
    errors: bool,
    follow: bool,
    tail: int,
    number: int | None,
    search: str | None,
    regex: bool,
    context: int,
    ranks: str | None,
    as_json: bool,
) -> None:
    """Read the log of a worker, or of all ranks of a group.

    -f also follows the worker's next run, unless --run is given.
    """
    if (worker is None) is (group is None):
        raise UsageError("expected either a WORKER or --group NAME")
    if ranks is not None and group is None:
        raise UsageError("--ranks selects ranks of a group", "use it with --group NAME")
    searched = bool(search) or errors
    query: dict[str, Any] = {
        "search": search or "",
        "expression": regex,
        "errors": errors,
        "context": context,
    }
    if group is not None:
        path = f"/groups/{segment(group)}/log"
        query |= {"run": number, "ranks": ranks}
    else:
        path = f"/workers/{segment(worker or '')}/log"
        query |= {"generation": None if number is None else _generation(client, path, str(worker), number)}
    page = client.get(path, **query, after="") if searched else _last(client, path, query, tail)
    previous = 0
    while True:
        follows = follow and not page.get("ended")
        if as_json:
            print_json(page)
        else:
            previous = _write_lines(page, previous, searched=searched, growing=follows)
        if not page["more"]:
            if not follows:
                return
            time.sleep(_AGAIN_S)
        page = _next(client, path, query, page, newest=number is None)


def _last(client: ApiClient, path: str, query: dict[str, Any], tail: int) -> dict[str, Any]:
    """Return the last lines, from several answers if they are long."""
    page: dict[str, Any] = client.get(path, **query, limit=min(tail, _LIMIT))
    while page["before"] and len(page["lines"]) < tail:
        limit = min(tail - len(page["lines"]), _LIMIT)
        earlier = client.get(path, **query, limit=limit, before=page["before"])
        if not earlier["lines"]:
            break
        page = {**page, "lines": earlier["lines"] + page["lines"], "before": earlier["before"]}
    return page


def _generation(client: ApiClient, path: str, worker: str, number: int) -> int:
    """Return the generation of a numbered run of the worker's newest group."""
    runs = client.get(path, limit=1)["runs"]
    newest = max(runs, key=lambda run: run["generation"], default=None)
    for run in runs:
        if newest is not None and run["group"] == newest["group"] and run["number"] == number:
            return int(run["generation"])
    known = joined(str(run["number"]) for run in runs if newest and run["group"] == newest["group"])
    raise UsageError(
        Phrase("no log of run {number} of {worker}", number=number, worker=worker),
        Phrase("runs with logs: {runs}", runs=known or Phrase("none")),
    )


def _next(
    client: ApiClient, path: str, query: dict[str, Any], before: dict[str, Any], *, newest: bool
) -> dict[str, Any]:
    """Return the lines after a page; if there are none, those of the worker's next run."""
    same = {"generation": before["generation"]} if "generations" in before else {}
    page: dict[str, Any] = client.get(path, **query | same, after=before["after"])
    latest = max(page.get("generations", ()), default=0)
    if newest and latest > before["generation"] and not page["lines"]:
        run = next((one for one in page["runs"] if one["generation"] == latest), None)
        name = Phrase("generation {number}", number=latest)
        if run is not None:
            name = Phrase("run {number} of {group}", number=run["number"], group=run["group"])
        _echo(name)
        page = client.get(path, **query | {"generation": latest}, after="")
    return page


def _write_lines(page: dict[str, Any], previous: int, *, searched: bool, growing: bool) -> int:
    """Print the lines of a page; return the number of the last one, ``previous`` is the one before them."""
    lines, text = page["lines"], ""
    if growing and lines and lines[-1]["place"] == page["after"]:
        lines = lines[:-1]  # not finished: it comes again
    for line in lines:
        if "generations" not in page:
            text += f"{local(line['at'])} [{line['rank']} {line['worker']}] "
        elif searched:
            text += f"{line['number']}{':' if line['match'] else '-'} "
        elif previous and line["number"] > previous + 1:
            _echo(Phrase("{n} lines dropped here", n=line["number"] - previous - 1))
        text += line["text"] + "\n"
        previous = line["number"]
    if text:
        _write(text)
    return previous


def _echo(text: Phrase) -> None:
    click.echo(f"-- {translate(text)} --", err=True)


def _write(text: str) -> None:
    # A file gets the log as it is; on a terminal, control characters are escaped.
    if sys.stdout.isatty():
        text = "\n".join(map(escaped, text.replace("\r\n", "\n").replace("\r", "\n").split("\n")))
    sys.stdout.write(text)
    sys.stdout.flush()
