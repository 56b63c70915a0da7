"""Building blocks for the options of all commands."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from platform_launch.cli import completion

Function = TypeVar("Function", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A finite number in a range; nan and infinity would pass every comparison."""

    def _describe_range(self) -> str:
        """Return the range for --help, empty without limits (click would write x<=None)."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def flags(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return a decorator that adds several options to a command, in this order."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def seconds(
    flag: str, name: str, *, least: float, default: float, text: str
) -> Callable[[Function], Function]:
    """Return the option ``flag`` for the parameter ``name``, a number of seconds; ``text`` is its help."""
    return click.option(
        flag,
        name,
        type=Number(least),
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


log_dir_option = click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Folder with the logs, as passed to run --log-dir (default: logs/ in the checkout or working "
    "directory).",
)

json_or_table = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
