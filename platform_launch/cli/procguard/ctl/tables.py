"""Answers as tables for people, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime

import click

from platform_launch.cli.output import print_json
from platform_launch.console.languages import translate
from platform_launch.console.screen import columns
from platform_launch.text import escaped

_COLOURS = {
    "running": "green",
    "finished": "green",
    "ready": "cyan",
    "preparing": "cyan",
    "stopping": "cyan",
    "backing-off": "yellow",
    "degraded": "yellow",
    "silent": "yellow",
    "failed": "red",
    "failed-first": "red",
    "refused": "red",
    "lost": "red",
}
_WIDTH_OF_A_PIPE = 240


def show(
    found: object, as_json: bool, titles: Sequence[str], rows: Iterable[Sequence[object]], empty: str = ""
) -> None:
    """Print an answer of the API: as JSON, or as a table."""
    if as_json:
        print_json(found)
    else:
        print_table(titles, rows, empty)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
    """Print rows under their titles, or ``empty`` if there are none. Cells with a state are coloured.

    Each part of a tuple is a line of its cell.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(translate(title), overflow="fold")
    for row in rows:
        cells = [_text(cell) for cell in row]
        table.add_row(*(Text(cell, style=_COLOURS.get(cell.split(" ")[0], "")) for cell in cells))
    console = Console(width=columns() if sys.stdout.isatty() else _WIDTH_OF_A_PIPE)
    with console.capture() as capture:
        console.print(table if table.row_count else empty, markup=False)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())  # no padding after the last column


def _text(cell: object) -> str:
    return "\n".join(map(escaped, cell)) if isinstance(cell, tuple) else escaped(str(cell))


def local(at: str | None) -> str:
    """Return one of the server's times in local time."""
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""
