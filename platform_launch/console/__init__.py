"""The one way to speak to a person: tagged lines, stages and banners; the same goes into a launch's log.

    screen   where a person reads: never waited for long     banner      how it looks there
    log      the log file of a run                           event_file  the events of a launch, for programs
    outlet   a descriptor that is written without waiting

Nothing that happens to a reader, a disk or a terminal may end or hold up what is being spoken of.
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

__all__ = ["STDERR", "STDOUT", "Console", "in_a_log", "on_a_terminal", "say"]

_WIDTH = 72  # of what is ruled in a log: fits 80 columns with the node's prefix
_MOST_WAITING = 200

Row = tuple[str, str]


class Console:
    """Speaks on standard error. ``prefix`` opens every line, e.g. ``[node 1] `` where nodes are several.

    In a log or a pipe a line carries the time, and at its end the event's mark (``platform_launch.events``).
    While ``quiet``, what only explains (stages, facts, some events) goes into the log, if there is one, and
    not to the screen. ``verbose``: whoever reads here has asked for everything.
    """

    def __init__(self, prefix: str = "", *, number: int = STDERR, node_rank: int = 0) -> None:
        self.prefix = prefix
        self._screen = Screen(number)
        self._node_rank = node_rank
        self._log: LogFile | None = None
        self._events: EventFile | None = None
        self._waiting: list[Event] = []
        self.quiet = self.verbose = False

    def keep(self, path: Path) -> Path | None:
        """Write every line from here on into a log as well, and every event, also earlier ones, beside it.

        The log is a new file, where the name is taken one like it. Returns its path, None without a log.
        """
        from platform_launch.console.event_file import EventFile
        from platform_launch.console.log import LogFile

        self._log = LogFile(path, self.tell)
        self._log.open_new()
        if self._log.path is not None:
            self._events = EventFile(self._log.path, self._node_rank)
            for event in self._waiting:
                self._events.append(event)
        self._waiting.clear()
        return self._log.path

    @property
    def is_watched(self) -> bool:
        """Whether a person looks at a terminal here."""
        return self._screen.is_terminal

    @property
    def has_log(self) -> bool:
        """Whether what is said here goes into a log as well."""
        return self._log is not None and self._log.path is not None

    def give_up_log(self) -> None:
        """Leave the log alone from here on: whoever else writes it has lost it, and has said so."""
        self._log = None

    def speak_for(self, node_rank: int, prefix: str) -> None:
        """Speak as another node of the job from here on, whose place this one took."""
        self.prefix = prefix
        self._node_rank = node_rank
        if self._events is not None:
            self._events.node_rank = node_rank

    def close(self) -> None:
        """Give a slow reader a last moment, and speak no more."""
        self._screen.close()
        for file in (self._log, self._events):
            if file is not None:
                file.close()

    def tell(
        self, event: Event, lines: Sequence[str] = (), *, on_screen: Collection[str] | None = None
    ) -> None:
        """Report an event: for people its line, or these ``lines``; for programs the event itself.

        A screen that is not verbose gets those that are ``on_screen``, or all.
        """
        self.note(event)
        for text in lines or (translate(event),):
            self._put(event.level, text, event, detail=on_screen is not None and text not in on_screen)

    def note(self, event: Event) -> None:
        """Put an event into the event file alone."""
        if self._events is not None:
            self._events.append(event)
        elif self._log is None and len(self._waiting) < _MOST_WAITING:
            self._waiting.append(event)

    def info(self, text: str) -> None:
        """Say a fact."""
        self.say("INFO", text)

    def success(self, text: str) -> None:
        """Say that something worked."""
        self.say("SUCCESS", text)

    def warn(self, text: str) -> None:
        """Say what may be wrong while going on."""
        self.say("WARN", text)

    def error(self, text: str) -> None:
        """Say what failed."""
        self.say("ERROR", text)

    def say(self, level: str, text: str) -> None:
        """Say a line of a level that is known only when it comes: INFO, SUCCESS, WARN or ERROR."""
        self._put(level, translate(text))

    def shows(self, level: str, event: Event | None, *, detail: bool = False) -> bool:
        """Tell whether a line goes to the screen, too; a ``detail`` does only if that is verbose."""
        if self.verbose or not self.has_log:
            return True
        if detail or not self.quiet:
            return not detail
        return level != "INFO" if event is None else is_for_every_screen(event, self._node_rank)

    def stage(self, number: int, title: str) -> None:
        """Open one of the launch's five stages."""
        title = translate(title)
        lead = f"{self.prefix}{_now()} "
        plain = f"{lead}== {number}/5 {title} ".ljust(_WIDTH, "=")
        self._keep(plain)
        if self.quiet and self.has_log:
            return
        if self._screen.styled:
            from platform_launch.console import banner

            self._screen.write(banner.rule(f"{self.prefix}{number}/5 {title}", self._screen.width))
        else:
            self._screen.write(f"{plain}\n")

    def title(self, text: str) -> None:
        """Open a program with a box where a person looks, with ruled lines in a log or a pipe."""
        if self._screen.styled:
            self.banner(text)
            return
        rule = "=" * (_WIDTH - len(self.prefix))
        for part in (rule, one_line(text), rule):
            self._screen.write(f"{self.prefix}{part}\n")

    def banner(self, title: str, rows: Sequence[Row] = (), level: str = "INFO") -> None:
        """Show a box with named facts where a person looks; a log or a pipe has the lines around it."""
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
        """Yield what shows a state: on a terminal in one line that changes, elsewhere as a line each."""
        if not self._screen.is_terminal:
            yield self.info
            return
        from platform_launch.console.banner import changing_line

        with changing_line(first) as show:
            yield lambda text: show(one_line(text))

    def refused(self, error: LaunchError) -> None:
        """Put a refusal into the log and among the events, as :meth:`show_error` will print it at the end."""
        self.note(Event(error.event, "ERROR", fields={"message": error.message, "hint": error.hint}))
        for text in _refusal(error):
            self._keep(f"{self.prefix}{text}")

    def show_error(self, error: LaunchError) -> None:
        """Print a refusal: the last words of a command."""
        for text in _refusal(error):
            self._screen.write(f"{text}\n")

    def _put(self, level: str, text: str, event: Event | None = None, *, detail: bool = False) -> None:
        lead, flat = f"{self.prefix}{_now()} ", one_line(text)
        full = f"{flat} {mark(event)}" if event is not None else flat
        if self.shows(level, event, detail=detail):
            self._show(lead, level, flat, full, event)
        self._keep(f"{lead}[{level}] {full}")  # should that fail, it is said below the line

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

    def _keep(self, text: str) -> None:
        if self._log is not None:
            self._log.append(f"{text}\n".encode(errors="backslashreplace"), self)


def say(level: str, text: str) -> None:
    """Say one line of a process that has no console of its own; nothing happens when nobody reads it."""
    _of_this_process().say(level, text)


@lru_cache(maxsize=1)
def _of_this_process() -> Console:
    return Console()


def in_a_log(event: Event) -> str:
    """Return an event's line as it stands in a log or a pipe: with the time, and the mark at its end."""
    return f"{_now()} [{event.level}] {translate(event)} {mark(event)}"


def on_a_terminal(event: Event) -> str:
    """Return an event's line as it stands on a terminal that shows a training's output."""
    return f"[{event.level}] {translate(event)}"


def _refusal(error: LaunchError) -> list[str]:
    lines = _printable_lines(translate(Phrase("error: {message}", message=Phrase.of(error.message))))
    if error.marked:
        lines[-1] += f" [{error.event}]"
    hint = translate(Phrase("hint:  {hint}", hint=Phrase.of(error.hint))) if error.hint else ""
    return [*lines, *_printable_lines(hint)]


def _printable_lines(text: str) -> list[str]:
    """Take a text apart that may mean several lines: what a compiler said, a list of what is missing."""
    return [one_line(one) for one in text.splitlines()]


def _now() -> str:
    return time.strftime("%H:%M:%S")
