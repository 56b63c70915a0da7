"""Text for people: what comes from outside commands no terminal, and numbers read as English."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

# The fields that a phrase from elsewhere may use: a value's name, quotes, and a number of digits.
_FIELD = re.compile(r"\{[A-Za-z_]\w*(?:!r)?(?::(?:\+?\.\d)?[fg%])?\}")
_DEEPEST = 12
# A word with the spaces before it, or a Chinese character with the punctuation after it.
_UNBROKEN = re.compile(r"\s*(?:[!-~\u00a0-\u24ff]+|[^\s])[，。；：、）”]*")


class Phrase(str):
    """A text that still knows the words and values it was filled from, so that other languages can say it.

    A value is translated only if it is such a text itself: any other text may be somebody's name. Without
    values the words are taken as they are.
    """

    __slots__ = ("template", "values")

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Phrase:
        """Fill the words."""
        kept: dict[str, object] = {
            name: one if isinstance(one, str | int | float) else str(one) for name, one in values.items()
        }
        text = super().__new__(cls, template.format(**kept) if kept else template)
        text.template, text.values = template, kept
        return text

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, object]]:
        """Let copies be rendered from the template again: the text may contain braces of a value."""
        return (self.template,), self.values

    @staticmethod
    def checked(template: str, values: Mapping[str, object]) -> Phrase:
        """Fill a template with what came from elsewhere. Raises KeyError if a value is missing."""
        filled = Phrase(template, **values)
        if not values:
            template.format()
        return filled

    @staticmethod
    def of(text: str) -> Phrase:
        """Return a message as a phrase: a plain text is one without values."""
        return text if isinstance(text, Phrase) else Phrase(text)

    def filled(self, template: str, translated: Callable[[Phrase], str]) -> str:
        """Return the text in another language, by its template and what translates the phrases in it."""
        values = {
            name: translated(one) if isinstance(one, Phrase) else one for name, one in self.values.items()
        }
        return template.format(**values) if values else template

    def document(self) -> dict[str, Any] | str:
        """Return it as a JSON value, or as plain text if :meth:`read` would reject it."""
        if not asks_for_values_only(self.template):
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
        if isinstance(parts := values.get("parts"), list) and words in _LISTS:
            return Listed([_read(one, deepest - 1) for one in parts], words)
        if not asks_for_values_only(words):
            raise ValueError("not a phrase: its words ask for more than values")
        read = {str(name): _read(one, deepest - 1) for name, one in values.items()}
        try:
            return Phrase(escaped(words), **read)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a phrase: {error}") from error


class Listed(Phrase):
    """Several texts as one. Its template shows what separates two of them."""

    __slots__ = ()

    COMMA, SEMICOLON, NOTHING = "{one}, {other}", "{one}; {other}", "{one}{other}"
    LINES = "{one}\n       {other}"  # below each other, as the lines of a hint are
    NAMES = "{name}, {name}"

    def __new__(cls, parts: Iterable[object], template: str = COMMA) -> Listed:
        """Join the parts; in some languages a comma between names is another one."""
        values: dict[str, object] = {
            str(number): part if isinstance(part, str) else str(part) for number, part in enumerate(parts)
        }
        if template == cls.COMMA and not any(isinstance(part, Phrase) for part in values.values()):
            template = cls.NAMES
        text = str.__new__(cls, _between(template).join(map(str, values.values())))
        text.template, text.values = template, values
        return text

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, object]]:
        """Let copies be joined again."""
        return (list(self.values.values()), self.template), {}

    def filled(self, template: str, translated: Callable[[Phrase], str]) -> str:
        """Return the text in another language, by its template and what translates the phrases in it."""
        parts = (translated(one) if isinstance(one, Phrase) else str(one) for one in self.values.values())
        return _between(template).join(parts)

    def document(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        parts = [one.document() if isinstance(one, Phrase) else one for one in self.values.values()]
        return {"words": self.template, "values": {"parts": parts}}


_LISTS = (Listed.COMMA, Listed.SEMICOLON, Listed.NOTHING, Listed.LINES, Listed.NAMES)


def _between(template: str) -> str:
    return template[template.index("}") + 1 : template.rindex("{")]


def _read(value: object, deepest: int) -> Any:
    if isinstance(value, dict):
        return Phrase.read(value, deepest)
    return value if isinstance(value, int | float) else escaped(str(value))


def asks_for_values_only(words: str) -> bool:
    """Return whether a template, which may come from a stranger, only names values."""
    return not any(brace in _FIELD.sub("", words.replace("{{", "").replace("}}", "")) for brace in "{}")


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


def joined(parts: Iterable[object], between: str = ", ") -> Phrase:
    """Return texts as one, with commas, semicolons or nothing between them."""
    return Listed(parts, {", ": Listed.COMMA, "; ": Listed.SEMICOLON, "": Listed.NOTHING}[between])


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
