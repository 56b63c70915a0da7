"""What the launcher says while it works: banners and tagged lines, coloured on a terminal, plain in a log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from platform_launch.supervise.log import LogFile

_COLOURS = {"INFO": "cyan", "SUCCESS": "green", "WARN": "yellow", "ERROR": "red"}
_WIDTH = 72  # fits 80 columns with the node's prefix


class Voice:
    """Speaks on standard error. ``prefix`` opens every line, e.g. ``[node 1] `` where nodes are several."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._log: LogFile | None = None

    def keep(self, path: Path) -> bool:
        """Write every line from here on into the log as well; tell whether that file can be written."""
        from platform_launch.supervise.log import LogFile

        self._log = LogFile(path, self.say)
        self._log.open()
        return self._log.path is not None

    def keep_error(self, message: str, hint: str) -> None:
        """Put a refusal into the log, as it will be printed at the end."""
        self._keep(f"error: {message}")
        if hint:
            self._keep(f"hint:  {hint}")

    def stage(self, number: int, title: str) -> None:
        """Open one of the launch's five stages."""
        plain = f"== {number}/5 {title} ".ljust(_WIDTH - len(self.prefix), "=")
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.rule import Rule
            from rich.text import Text

            self._keep(plain)
            heading = Text(f"{self.prefix}{number}/5 {title}", style="bold cyan")
            Console(stderr=True).print(Rule(heading, align="left", style="cyan"))
        else:
            self._line(plain)

    def title(self, text: str) -> None:
        """Open the launch with a box on a terminal, with ruled lines in a log."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.panel import Panel
            from rich.text import Text

            self._keep(text)
            Console(stderr=True).print(Panel(Text(f"{self.prefix}{text}", style="bold"), style="cyan"))
        else:
            rule = "=" * (_WIDTH - len(self.prefix))
            for line in (rule, text, rule):
                self._line(line)

    def info(self, text: str) -> None:
        """Say a fact."""
        self._tagged("INFO", text)

    def success(self, text: str) -> None:
        """Say that something worked."""
        self._tagged("SUCCESS", text)

    def warn(self, text: str) -> None:
        """Say what may be wrong while going on."""
        self._tagged("WARN", text)

    def error(self, text: str) -> None:
        """Say what failed."""
        self._tagged("ERROR", text)

    def say(self, level: str, text: str) -> None:
        """Say a line of a level that is known only when it comes: INFO, SUCCESS, WARN or ERROR."""
        self._tagged(level, text)

    def _tagged(self, tag: str, text: str) -> None:
        # One line each, whatever the text holds: a log is read line by line.
        flat = " ".join(text.splitlines())
        self._line(f"{click.style(f'[{tag}]', fg=_COLOURS[tag])} {flat}")

    def _line(self, text: str) -> None:
        click.echo(f"{self.prefix}{text}", err=True)
        self._keep(click.unstyle(text))

    def _keep(self, text: str) -> None:
        if self._log is not None:
            line = f"{self.prefix}{' '.join(text.splitlines())}\n"
            self._log.append(line.encode(errors="replace"), self)
