"""Questions on a terminal. Without a terminal, the missing flags are reported instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import click
from rich.console import Console
from rich.prompt import Prompt

from platform_launch.console.languages import translate
from platform_launch.console.screen import columns
from platform_launch.errors import InputError, UsageError
from platform_launch.text import Phrase, joined


class Dialogue:
    """Asks for the values that no flag gave. ``open`` is False without a terminal: flags are required then.

    ``asked`` is true after the first question.
    """

    def __init__(self) -> None:
        self.open = sys.stdin.isatty() and sys.stderr.isatty()
        self._console = Console(stderr=True, highlight=False, width=columns())
        self._missing: list[str] = []
        self.asked = False

    def print(self, text: str) -> None:
        """Print a line, if there is a terminal."""
        if self.open:
            self._console.print(translate(text), markup=False)

    def show(self, text: str) -> None:
        """Show a file as it will be written, without wrapping its lines."""
        if self.open:
            self._console.print(text, markup=False, soft_wrap=True)

    def choose(self, flag: str, question: str, choices: Mapping[str, str], default: str | None) -> str:
        """Return one of ``choices`` (answer → description), chosen by number or name.

        Raises UsageError without a terminal and a default: later questions depend on this answer.
        """
        if not self.open:
            if default is None:
                self._missing.append(f"{flag} ({', '.join(choices)})")
                self.require_answers()
            return str(default)
        self._console.print(translate(question), markup=False)
        for number, (name, meaning) in enumerate(choices.items(), 1):
            self._console.print(f"  {number}  {name:<18} {translate(meaning)}", markup=False)
        numbered = dict(zip(map(str, range(1, len(choices) + 1)), choices, strict=False))
        answer = self._prompt(Phrase("choice"), default or "1", [*numbered, *choices])
        return numbered.get(answer, answer)

    def ask(self, flag: str, question: str, default: str | None, check: Callable[[str], object]) -> str:
        """Return an answer that ``check`` accepts; the message of its InputError is shown."""
        if not self.open:
            if default is None:
                self._missing.append(flag)
            return default or ""
        while True:
            answer = self._prompt(question, default)
            try:
                check(answer)
            except InputError as error:
                self._console.print(f"  {translate(error.message)}", style="yellow", markup=False)
                if error.hint:
                    self._console.print(f"  {translate(error.hint)}", style="yellow", markup=False)
            else:
                return answer

    def confirm(self, question: str) -> None:
        """Ask for confirmation if anything was asked before. Raises click.Abort on no."""
        if self.open and self.asked:
            click.confirm(translate(question), default=True, abort=True, err=True)

    def agrees(self, question: str) -> bool:
        """Return the answer to a yes-or-no question; no without a terminal."""
        return self.open and click.confirm(translate(question), default=False, err=True)

    def _prompt(self, question: str, default: str | None, choices: list[str] | None = None) -> str:
        self.asked = True
        try:
            answer = Prompt.ask(
                translate(question),
                console=self._console,
                choices=choices,
                show_choices=False,
                show_default=bool(default),
                default=default,
            )
        except EOFError as error:
            raise click.Abort from error
        return answer or ""

    def require_answers(self) -> None:
        """Raise UsageError if answers are missing and there is no terminal."""
        if self._missing:
            raise UsageError(
                Phrase(
                    "no terminal to ask on, and no {missing}: expected every answer as a flag",
                    missing=joined(self._missing),
                ),
                "add them, or run this on a terminal",
            )


def first_found(programs: Sequence[tuple[str, str]], path: str | None) -> str | None:
    """Return the answer for the first of the programs that is on ``path``, None if none is."""
    from shutil import which

    return next((answer for program, answer in programs if which(program, path=path or "")), None)
