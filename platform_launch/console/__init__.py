"""The one way to print for people: lines with a level, stages and banners, which a launch also logs.

    screen      the terminal or pipe; never waits long for a reader
    banner      boxes and colours
    log         the log file of a run
    event_file  the events of a launch, for programs
    outlet      a descriptor that is written without waiting

A slow reader, a full disk or a closed terminal never stops or delays a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.console.languages import translate
from platform_launch.console.screen import STDERR, STDOUT, Screen
from platform_launch.errors import LaunchError
from platform_launch.events import CATALOGUE, Event, is_for_every_screen, mark
from platform_launch.text import Phrase, one_line

if TYPE_CHECKING:
    from platform_launch.console.event_file import EventFile
    from platform_launch.console.log import LogFile

__all__ = ["STDERR", "STDOUT", "Console", "log_line", "print_line", "terminal_line"]

_WIDTH = 72  # of rules in a log: with the node's prefix, they fit 80 columns
_MOST_WAITING = 200

Row = tuple[str, str]


class Console:
    """Prints on standard error. Every line begins with ``prefix``, e.g. ``[node 1] `` if there are several.

    In a log or a pipe, a line has the time, and ends with the event's mark (``platform_launch.events``).
    While ``quiet``, stages, facts and some events go to the log only, if there is one. ``verbose``: the
    screen gets everything.
    """

    def __init__(self, prefix: str = "", *, number: int = STDERR, node_rank: int = 0) -> None:
        self.prefix = prefix
        self._screen = Screen(number)
        self._node_rank = node_rank
        self._log: LogFile | None = None
        self._events: EventFile | None = None
        self._waiting: list[Event] = []
        self.quiet = self.verbose = False

    def open_log(self, path: Path) -> Path | None:
        """Also write every line from now on to a log, and all events, even earlier ones, to a file next to
        it.

        The log is a new file, under a similar name if this one is taken. Returns its path, or None.
        """
        from platform_launch.console.event_file import EventFile
        from platform_launch.console.log import LogFile

        self._log = LogFile(path, self.report)
        self._log.open_new()
        if self._log.path is not None:
            self._events = EventFile(self._log.path, self._node_rank)
            for event in self._waiting:
                self._events.append(event)
        self._waiting.clear()
        return self._log.path

    @property
    def is_terminal(self) -> bool:
        """Whether this prints on a terminal."""
        return self._screen.is_terminal

    @property
    def has_log(self) -> bool:
        """Whether there is a log."""
        return self._log is not None and self._log.path is not None

    def drop_log(self) -> None:
        """Stop writing the log: another writer of the same file has lost it and has reported that."""
        self._log = None

    def act_as(self, node_rank: int, prefix: str) -> None:
        """Print as another node of the job from now on: this node has replaced it."""
        self.prefix = prefix
        self._node_rank = node_rank
        if self._events is not None:
            self._events.node_rank = node_rank

    def close(self) -> None:
        """Give a slow reader a last moment, and close all files."""
        self._screen.close()
        for file in (self._log, self._events):
            if file is not None:
                file.close()

    def report(
        self, event: Event, lines: Sequence[str] = (), *, on_screen: Collection[str] | None = None
    ) -> None:
        """Report an event: its line, or these ``lines``, for people, and the event itself for programs.

        Unless verbose, the screen gets only the lines in ``on_screen``; None means all.
        """
        self.record(event)
        for text in lines or (translate(event),):
            self._write(event.level, text, event, detail=on_screen is not None and text not in on_screen)

    def record(self, event: Event) -> None:
        """Write an event to the event file only."""
        if self._events is not None:
            self._events.append(event)
        elif self._log is None and len(self._waiting) < _MOST_WAITING:
            self._waiting.append(event)

    def info(self, text: str) -> None:
        """Print a fact."""
        self.print("INFO", text)

    def success(self, text: str) -> None:
        """Print that something succeeded."""
        self.print("SUCCESS", text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.print("WARN", text)

    def error(self, text: str) -> None:
        """Print an error."""
        self.print("ERROR", text)

    def print(self, level: str, text: str) -> None:
        """Print a line of a level: INFO, SUCCESS, WARN or ERROR."""
        self._write(level, translate(text))

    def shows(self, level: str, event: Event | None, *, detail: bool = False) -> bool:
        """Return whether a line goes to the screen too; a ``detail`` does only if that is verbose."""
        if self.verbose or not self.has_log:
            return True
        if detail or not self.quiet:
            return not detail
        return level != "INFO" if event is None else is_for_every_screen(event, self._node_rank)

    def stage(self, number: int, title: str) -> None:
        """Print the heading of one of the launch's five stages."""
        title = translate(title)
        lead = f"{self.prefix}{_now()} "
        plain = f"{lead}== {number}/5 {title} ".ljust(_WIDTH, "=")
        self._log_text(plain)
        if self.quiet and self.has_log:
            return
        if self._screen.styled:
            from platform_launch.console import banner

            self._screen.write(banner.rule(f"{self.prefix}{number}/5 {title}", self._screen.width))
        else:
            self._screen.write(f"{plain}\n")

    def title(self, text: str) -> None:
        """Print a program's title: a box on a terminal, lines between rules in a log or a pipe."""
        if self._screen.styled:
            self.banner(text)
            return
        rule = "=" * (_WIDTH - len(self.prefix))
        for part in (rule, one_line(text), rule):
            self._screen.write(f"{self.prefix}{part}\n")

    def banner(self, title: str, rows: Sequence[Row] = (), level: str = "INFO") -> None:
        """Print a box of named facts, on a terminal only; logs and pipes have the lines around it."""
        if self._screen.styled:
            from platform_launch.console import banner

            facts = [
                (translate(name), one_line(translate(value) if isinstance(value, Phrase) else value))
                for name, value in rows
                if value
            ]
            self._screen.write(
                banner.box(one_line(f"{self.prefix}{translate(title)}"), facts, level, self._screen.width)
            )

    @contextmanager
    def changing_line(self, first: str) -> Iterator[Callable[[str], None]]:
        """Yield a function that shows a state: in one changing line on a terminal, otherwise a new line each
        time.
        """
        if not self._screen.is_terminal:
            yield self.info
            return
        from platform_launch.console.banner import changing_line

        with changing_line(first) as show:
            yield lambda text: show(one_line(text))

    def log_error(self, error: LaunchError) -> None:
        """Write an error to the log and the events; :meth:`show_error` prints it at the end."""
        self.record(Event(error.event, "ERROR", fields={"message": error.message, "hint": error.hint}))
        for text in _error_lines(error):
            self._log_text(f"{self.prefix}{text}")

    def show_error(self, error: LaunchError) -> None:
        """Print an error, as the last output of a command."""
        for text in _error_lines(error):
            self._screen.write(f"{text}\n")

    def _write(self, level: str, text: str, event: Event | None = None, *, detail: bool = False) -> None:
        lead, flat = f"{self.prefix}{_now()} ", one_line(text)
        full = f"{flat} {mark(event)}" if event is not None else flat
        if self.shows(level, event, detail=detail):
            self._show(lead, level, flat, full, event)
        self._log_text(f"{lead}[{level}] {full}")  # if that fails, the report comes after this line

    def _show(self, lead: str, level: str, flat: str, full: str, event: Event | None) -> None:
        if not self._screen.styled:
            self._screen.write(f"{lead}[{level}] {full}\n")
            return
        from platform_launch.console import banner

        if not self._screen.is_terminal:
            self._screen.write(banner.tagged(lead, level, full, None))
            return
        if event is not None and event.id not in CATALOGUE:
            flat += f" [{event.id}]"  # a finding, which docs/reference/findings.md explains
        self._screen.write(banner.tagged(self.prefix, level, flat, self._screen.width))

    def _log_text(self, text: str) -> None:
        if self._log is not None:
            self._log.append(f"{text}\n".encode(errors="backslashreplace"), self)


def print_line(level: str, text: str) -> None:
    """Print one line in a process without a console of its own; never fails."""
    _of_this_process().print(level, text)


@lru_cache(maxsize=1)
def _of_this_process() -> Console:
    return Console()


def log_line(event: Event) -> str:
    """Return an event's line as in a log or a pipe, with the time and the mark."""
    return f"{_now()} [{event.level}] {translate(event)} {mark(event)}"


def terminal_line(event: Event) -> str:
    """Return an event's line as on a terminal that shows a job's output."""
    return f"[{event.level}] {translate(event)}"


def _error_lines(error: LaunchError) -> list[str]:
    lines = _printable_lines(translate(Phrase("error: {message}", message=Phrase.of(error.message))))
    if error.marked:
        lines[-1] += f" [{error.event}]"
    hint = translate(Phrase("hint:  {hint}", hint=Phrase.of(error.hint))) if error.hint else ""
    return [*lines, *_printable_lines(hint)]


def _printable_lines(text: str) -> list[str]:
    """Split a text that may have several lines, such as a compiler's output."""
    return [one_line(one) for one in text.splitlines()]


def _now() -> str:
    return time.strftime("%H:%M:%S")
