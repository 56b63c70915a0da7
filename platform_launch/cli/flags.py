"""What the options of all commands are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def flags(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return what adds several options to a command, in this order."""

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
        type=click.FloatRange(least),
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


json_or_table = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
