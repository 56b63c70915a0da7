"""How far a build is: one line that changes on a terminal, a line for each step in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from platform_launch.console import Console
from platform_launch.wheels.lines import BuildStep


@contextmanager
def showing_steps(ops_in_all: int, console: Console) -> Iterator[Callable[[BuildStep], None]]:
    """Yield what shows a step."""

    def words(step: BuildStep) -> str:
        files = f": {step.done} of {step.files} files, {step.file}" if step.files else ""
        # async_io brings pin_memory along, so that there may be more ops than were asked for.
        return f"op {step.op_number} of {max(ops_in_all, step.op_number)}, {step.op}{files}"

    with console.changing_line("preparing") as show:
        yield lambda step: show(words(step))
