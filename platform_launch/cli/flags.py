"""What the options of all commands are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from platform_launch.cli import completion
from platform_launch.errors import UsageError, shown, shown_list
from platform_launch.text import Phrase

Function = TypeVar("Function", bound=Callable[..., Any])


class WholeNumber(click.IntRange):
    """A whole number from ``min`` to ``max``; a refusal says what was read and what is expected."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number. Raises UsageError."""
        try:
            number: int | None = int(value)
        except (TypeError, ValueError):
            number = None
        if number is None or not _within(number, self):
            raise _refused(value, "a whole number", _limits(self), param, ctx)
        return number


class OneOf(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2
    """One of some words; a refusal says what was read and what is expected."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the word. Raises UsageError."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            known = Phrase("one of {known}", known=shown_list(self.choices))
            raise _refused(value, known, "", param, ctx) from error


class Number(click.FloatRange):
    """A number from ``min`` to ``max``, and never none or without end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number. Raises UsageError."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and _within(number, self)):
            raise _refused(value, "a number", _limits(self), param, ctx)
        return number


def _within(number: float, allowed: WholeNumber | Number) -> bool:
    least, most = allowed.min, allowed.max
    low = least is None or number > least or (number == least and not allowed.min_open)
    return low and (most is None or number <= most)


def _limits(allowed: WholeNumber | Number) -> str:
    least, most = allowed.min, allowed.max
    if least is not None and most is not None:
        return Phrase(" from {least} to {most}", least=least, most=most)
    if least is None:
        return ""
    return Phrase(" above {least}" if allowed.min_open else ", {least} or more", least=least)


def _refused(
    value: Any, what: str, limits: str, param: click.Parameter | None, ctx: click.Context | None
) -> UsageError:
    option = max(param.opts, key=len) if isinstance(param, click.Option) else ""
    flag = option or (param.human_readable_name if param else "")
    hint = (
        Phrase("{where} --help lists the {listed}", where=ctx.command_path, listed=Phrase("options"))
        if ctx
        else ""
    )
    refused = Phrase(
        "{flag} {value}: expected {what}{limits}",
        flag=flag,
        value=shown(str(value)),
        what=what,
        limits=limits,
    )
    return UsageError(refused, hint)


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
    help="Where launches left their logs, as run --log-dir says (default: logs/ in the checkout or working "
    "directory).",
)

json_or_table = click.option(
    "--format", "form", type=OneOf(["table", "json"]), default="table", show_default=True
)
