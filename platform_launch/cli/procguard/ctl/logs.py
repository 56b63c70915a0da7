"""``procguard ctl logs``: the last lines of a worker's log, all of it, or what is still to come."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from platform_launch.cli.procguard.ctl.client import Client, connected, plain, segment
from platform_launch.cli.procguard.ctl.tables import print_json

_AGAIN_S = 1.0


@click.command()
@click.argument("worker")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option(
    "-n", "--tail", type=click.IntRange(1, 10_000), default=200, show_default=True, help="The last lines."
)
@click.option("--run", "generation", type=click.IntRange(0), metavar="RUN", help="Which run (the newest).")
@click.option("--search", metavar="TEXT", help="Only the lines that hold this, with their numbers.")
@connected
def logs(
    client: Client,
    worker: str,
    follow: bool,
    tail: int,
    generation: int | None,
    search: str | None,
    as_json: bool,
) -> None:
    """Read a worker's log. With -f a new run of the worker is followed too, unless --run names one."""
    path = f"/workers/{segment(worker)}/log"
    if search is not None:
        found = client.get(path, generation=generation, search=search)
        print_json(found) if as_json else _print_matches(found)
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


def _next(client: Client, path: str, before: dict[str, Any], generation: int | None) -> dict[str, Any]:
    window: dict[str, Any] = client.get(path, generation=before["generation"], offset=before["next_offset"])
    if window["offset"] > before["next_offset"]:
        _say(f"{window['offset'] - before['next_offset']} bytes were left out here")
    newest = max(window["generations"], default=0)
    if generation is None and newest > before["generation"] and not window["text"]:
        _say(f"run {newest}")
        window = client.get(path, generation=newest, offset=0)
    return window


def _say(text: str) -> None:
    click.echo(f"-- {text} --", err=True)


def _print_matches(found: dict[str, Any]) -> None:
    for match in found["matches"]:
        click.echo(f"{match['line']}: {plain(match['text'])}")
    if found["more"]:
        click.echo("there are more: search for something rarer", err=True)


def _write(text: str) -> None:
    # A file gets the log as it is; to a terminal it is text, and commands nothing.
    if sys.stdout.isatty():
        text = plain(text.replace("\r\n", "\n").replace("\r", "\n"))
    sys.stdout.write(text)
    sys.stdout.flush()
