"""Text for people: what comes from outside commands no terminal, and numbers read as English."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

# The fields that a phrase from elsewhere may use: a value's name, quotes, and a number of digits.
_FIELD = re.compile(r"\{[A-Za-z_]\w*(?:!r)?(?::(?:\+?\.\d)?[fg%])?\}")
_DEEPEST = 12
# A word with the spaces before it, or a Chinese character with the punctuation after it.
_UNBROKEN = re.compile(r"\s*(?:[!-~\u00a0-\u24ff]+|[^\s])[，。；：、）”]*")


class Phrase(str):
    """A text that still knows the words and values it was filled from, so that other languages can say it.

    A value may be such a text itself, or one without values.
    """

    __slots__ = ("template", "values")

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Phrase:
        """Fill the words."""
        kept: dict[str, object] = {
            name: one if isinstance(one, str | int | float) else str(one) for name, one in values.items()
        }
        text = super().__new__(cls, template.format(**kept))
        text.template, text.values = template, kept
        return text

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, object]]:
        """Let copies be rendered from the template again: the text may contain braces of a value."""
        return (self.template,), self.values

    def document(self) -> dict[str, Any] | str:
        """Return it as a JSON value, or as plain text if :meth:`read` would reject it."""
        if _asks_for_more(self.template):
            return str(self)
        values = {
            name: one.document() if isinstance(one, Phrase) else one for name, one in self.values.items()
        }
        return {"words": self.template, "values": values}

    @staticmethod
    def read(document: object, deepest: int = _DEEPEST) -> Phrase:
        """Return the phrase of a JSON value, which may come from a stranger. Raises ValueError."""
        known = document if isinstance(document, dict) else {}
        words, values = known.get("words"), known.get("values")
        if not isinstance(words, str) or not isinstance(values, dict) or deepest == 0:
            raise ValueError("not a phrase: words and values are expected")
        if _asks_for_more(words):
            raise ValueError("not a phrase: its words ask for more than values")
        read: dict[str, object] = {}
        for name, one in values.items():
            if isinstance(one, dict):
                read[str(name)] = Phrase.read(one, deepest - 1)
            else:
                read[str(name)] = one if isinstance(one, int | float) else escaped(str(one))
        try:
            return Phrase(escaped(words), **read)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a phrase: {error}") from error


def _asks_for_more(words: str) -> bool:
    return any(brace in _FIELD.sub("", words.replace("{{", "").replace("}}", "")) for brace in "{}")


def escaped(text: str) -> str:
    """Return a text with everything escaped that could steer a terminal or forge a line; tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if _harmless(c) else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return a text as one line: line ends become spaces, the rest is escaped."""
    return text if text.isprintable() else escaped(" ".join(text.splitlines()).expandtabs(4))


def counted(number: int, noun: str) -> Phrase:
    """Return a number with its noun: ``1 node``, ``2 nodes``, ``3 processes``."""
    several = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return Phrase(f"{{number}} {noun}{several}", number=number)


def joined(parts: Iterable[str], between: str = ", ") -> Phrase:
    """Return texts as one, with commas or semicolons between them."""
    values = {f"part{number}": part for number, part in enumerate(parts)}
    return Phrase(between.join(f"{{{name}}}" for name in values), **values)


def either(parts: Sequence[str]) -> Phrase:
    """Return texts as alternatives: ``A or B or C``."""
    first = joined(parts[:1])
    return Phrase("{first} or {others}", first=first, others=either(parts[1:])) if len(parts) > 1 else first


def seconds(value: float) -> Phrase:
    """Return a duration for people: ``35 s``, ``12 min 3 s``, ``2 h 5 min``."""
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return Phrase("{hours} h {minutes} min", hours=hours, minutes=minutes)
    return (
        Phrase("{minutes} min {rest} s", minutes=minutes, rest=rest)
        if minutes
        else Phrase("{rest} s", rest=rest)
    )


def columns(text: str) -> int:
    """Return the width of a text in terminal columns: a Chinese character takes two."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def padded(text: str, width: int) -> str:
    """Return a text with spaces up to so many columns."""
    return text + " " * (width - columns(text))


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as lines of at most so many columns, broken between words or Chinese characters."""
    lines, line = [], ""
    for part in _UNBROKEN.findall(text):
        if line and columns((line + part).rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += part if line else part.lstrip()
    return [*lines, line.rstrip()]


def iso_utc(moment: datetime | None = None) -> str:
    """Return a time, by default now, in the format of files: ``2026-11-21T04:15:00Z``."""
    moment = datetime.now(timezone.utc) if moment is None else moment.astimezone(timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _harmless(character: str) -> bool:
    # Cc control, Cf format (may change the writing direction), Cs half a character, Zl and Zp line ends.
    return character == "\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
