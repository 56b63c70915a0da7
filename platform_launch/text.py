"""Text for people: what comes from outside commands no terminal, and numbers read as English."""

from __future__ import annotations

import unicodedata
from datetime import datetime, timezone


class Phrase(str):
    """A text that still knows the words and values it was filled from, so that other languages can say it.

    A value may be such a text itself, or one without values.
    """

    __slots__ = ("template", "values")

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Phrase:
        """Fill the words."""
        text = super().__new__(cls, template.format(**values))
        text.template, text.values = template, values
        return text

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, object]]:
        """Let copies be filled from the words again: the text may hold braces of a value."""
        return (self.template,), self.values


def escaped(text: str) -> str:
    """Return a text with everything escaped that could steer a terminal or forge a line; tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if _harmless(c) else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return a text as one line: line ends become spaces, the rest is escaped."""
    return text if text.isprintable() else escaped(" ".join(text.splitlines()).expandtabs(4))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 node``, ``2 nodes``, ``3 processes``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def seconds(value: float) -> str:
    """Return a time as a person says it: ``35 s``, ``12 min 3 s``, ``2 h 5 min``."""
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def iso_utc(moment: datetime | None = None) -> str:
    """Return a moment, by default now, as it stands in files: ``2026-11-21T04:15:00Z``."""
    moment = datetime.now(timezone.utc) if moment is None else moment.astimezone(timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _harmless(character: str) -> bool:
    # Cc control, Cf format (it turns the direction of writing), Cs half a character, Zl and Zp line ends.
    return character == "\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
