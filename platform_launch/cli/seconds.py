"""Options that are a number of seconds: all look the same in the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def seconds(
    flag: str, name: str, *, least: float, default: float, text: str
) -> Callable[[Function], Function]:
    """Return the option ``flag`` for the parameter ``name``; ``text`` is its help."""
    return click.option(
        flag,
        name,
        type=click.FloatRange(least),
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )
