"""How lines and banners look on a terminal: colours, boxes, and lines broken between words."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from platform_launch.text import wrapped

COLOURS = {"INFO": "cyan", "SUCCESS": "green", "WARN": "yellow", "ERROR": "red"}
# If less than this is left next to the tag, further lines begin at the left.
_NARROWEST, _NARROW_MARGIN = 40, "  "

Row = tuple[str, str]


def tagged(prefix: str, level: str, text: str, width: int | None) -> str:
    """Return a line with its coloured tag, broken between words to ``width`` columns; None: one line."""
    head = Text.assemble(prefix, (f"[{level}]", COLOURS[level]), " ")
    if width is None:
        return _rendered(Text.assemble(head, text), None)
    if width - head.cell_len < _NARROWEST:
        margin = _NARROW_MARGIN
        broken = Text.assemble(head, text).wrap(_rich(io.StringIO(), width), width - len(margin))
        return _rendered(Text(f"\n{margin}").join(broken), None)
    margin = " " * head.cell_len
    parts = enumerate(wrapped(text, width - head.cell_len))
    lines = [Text.assemble(margin if number else head, part) for number, part in parts]
    return _rendered(Text("\n").join(lines), None)


def rule(text: str, width: int) -> str:
    """Return a heading that fills the line."""
    return _rendered(Rule(Text(text, style="bold cyan"), align="left", style="cyan"), width)


def box(title: str, rows: Iterable[Row], level: str, width: int) -> str:
    """Return a box with a title and named facts in it."""
    colour, facts = COLOURS[level], list(rows)
    if not facts:
        return _rendered(Panel(Text(title, style="bold"), border_style=colour), width)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    heading = Text(title, style=f"bold {colour}")
    return _rendered(Panel(table, title=heading, title_align="left", border_style=colour), width)


@contextmanager
def changing_line(first: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the text of a line with a spinner and a clock; removed at the end."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=RichConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(first), total=None)
        yield lambda text: bar.update(task, description=escape(text))


def _rendered(what: object, width: int | None) -> str:
    file = io.StringIO()
    _rich(file, width).print(what, soft_wrap=width is None, highlight=False)
    return file.getvalue()


def _rich(file: io.StringIO, width: int | None) -> RichConsole:
    return RichConsole(file=file, force_terminal=True, width=width or 80, highlight=False, emoji=False)
