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
    sought: dict[str, Any] = {"search": search, "expression": regex, "errors": errors, "context": context}
    if group is not None:
        sought |= {"search": search or "", "ranks": ranks}
        _merged(client, group, number, tail, follow, sought, as_json)
        return
    if ranks is not None:
        raise UsageError("--ranks selects ranks of a group", "use it with --group NAME")
    assert worker is not None
    path = f"/workers/{segment(worker)}/log"
    generation = None if number is None else _generation(client, path, worker, number)
    if search is not None or errors:
        offset, more = 0, True
        while more:
            found = client.get(path, generation=generation, offset=offset, **sought)
            print_json(found) if as_json else _print_matches(found)
            offset, more = found["next_offset"], found["more"]
        return
    window = client.get(path, generation=generation, tail=tail, limit=1024 * 1024)
    if as_json:
        print_json(window)
        return
    _write(window["text"])
    while follow:
        if window["next_offset"] >= window["size"]:
            time.sleep(_AGAIN_S)
        window = _next(client, path, window, generation)
        _write(window["text"])


def _generation(client: ApiClient, path: str, worker: str, number: int) -> int:
    """Return the generation of a numbered run of the worker's newest group."""
    runs = client.get(path, tail=1)["runs"]
    newest = max(runs, key=lambda run: run["generation"], default=None)
    for run in runs:
        if newest is not None and run["group"] == newest["group"] and run["number"] == number:
            return int(run["generation"])
    known = joined(str(run["number"]) for run in runs if newest and run["group"] == newest["group"])
    raise UsageError(
        Phrase("no log of run {number} of {worker}", number=number, worker=worker),
        Phrase("runs with logs: {runs}", runs=known or Phrase("none")),
    )


def _next(client: ApiClient, path: str, before: dict[str, Any], generation: int | None) -> dict[str, Any]:
    window: dict[str, Any] = client.get(path, generation=before["generation"], offset=before["next_offset"])
    if window["offset"] > before["next_offset"]:
        _echo(Phrase("{bytes} bytes dropped here", bytes=window["offset"] - before["next_offset"]))
    newest = max(window["generations"], default=0)
    if generation is None and newest > before["generation"] and not window["text"]:
        names = {
            run["generation"]: Phrase("run {number} of {group}", number=run["number"], group=run["group"])
            for run in window["runs"]
        }
        _echo(names.get(newest) or Phrase("generation {number}", number=newest))
        window = client.get(path, generation=newest, offset=0)
    return window


def _echo(text: Phrase) -> None:
    click.echo(f"-- {translate(text)} --", err=True)


def _print_matches(found: dict[str, Any]) -> None:
    for match in found["matches"]:
        click.echo(f"{match['line']}{':' if match['match'] else '-'} {escaped(match['text'])}")


def _merged(
    client: ApiClient,
    group: str,
    run: int | None,
    tail: int,
    follow: bool,
    sought: dict[str, Any],
    as_json: bool,
) -> None:
    path, after = f"/groups/{segment(group)}/log", "" if sought["search"] or sought["errors"] else None
    while True:
        page = client.get(path, run=run, limit=min(tail, 5_000), after=after, **sought)
        if as_json:
            print_json(page)
        else:
            for line in page["lines"]:
                click.echo(f"{local(line['at'])} [{line['rank']} {line['worker']}] {escaped(line['text'])}")
        after = page["after"]
        if not page["more"]:
            if not follow or page["ended"]:
                return
            time.sleep(_AGAIN_S)


def _write(text: str) -> None:
    # A file gets the log as it is; on a terminal, control characters are escaped.
    if sys.stdout.isatty():
        text = "\n".join(map(escaped, text.replace("\r\n", "\n").replace("\r", "\n").split("\n")))
    sys.stdout.write(text)
    sys.stdout.flush()
