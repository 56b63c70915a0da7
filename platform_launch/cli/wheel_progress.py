"""How far a build is: one line that changes on a terminal, a line for each step in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from platform_launch.cli.voice import Voice
from platform_launch.wheels.lines import Step


@contextmanager
def showing_steps(ops_in_all: int, voice: Voice) -> Iterator[Callable[[Step], None]]:
    """Yield what shows a step on standard error."""

    def words(step: Step) -> str:
        files = f": {step.done} of {step.files} files, {step.file}" if step.files else ""
        # async_io brings pin_memory along, so that there may be more ops than were asked for.
        return f"op {step.op_number} of {max(ops_in_all, step.op_number)}, {step.op}{files}"

    if not sys.stderr.isatty():
        yield lambda step: voice.info(words(step))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=None)
        yield lambda step: bar.update(task, description=escape(words(step)))
