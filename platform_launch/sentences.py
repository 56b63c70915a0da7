"""Messages for people, as a code and values: words come where it is shown, in the reader's language.

Programs read the code, never the words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from platform_launch.errors import shown

_LONGEST = 260
_MOST = 16
_DEEPEST = 12


@dataclass(frozen=True)
class Sentence:
    """A code and what fills its words in: texts, numbers, lists and further sentences.

    ``text`` is English, for a code whose English words stand elsewhere.
    """

    code: str
    values: dict[str, Value] = field(default_factory=dict)
    text: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        written = {name: _written(value) for name, value in self.values.items()}
        return {"code": self.code, "values": written} | ({"text": self.text} if self.text else {})

    @staticmethod
    def read(document: object, deepest: int = _DEEPEST) -> Sentence:
        """Return the sentence a document means, with at most so many in each other.

        Raises ValueError for one that is none.
        """
        if deepest == 0:
            raise ValueError(f"a sentence in sentences more than {_DEEPEST} deep")
        known = document if isinstance(document, dict) else {}
        code, values = known.get("code"), known.get("values", {})
        if not isinstance(code, str) or not isinstance(values, dict):
            raise ValueError("not a sentence: a code and values are expected")  # noqa: TRY004 - read from JSON
        read = {str(name): _read(value, deepest - 1) for name, value in values.items()}
        return Sentence(code, read, str(known.get("text", "")))


Value = str | int | Sentence | list[str | Sentence]


def _written(value: Value) -> Any:
    if isinstance(value, list):
        return [_written(one) for one in value]
    return value.document() if isinstance(value, Sentence) else value


def _read(value: object, deepest: int) -> Value:
    if isinstance(value, list):
        return [Sentence.read(one, deepest) if isinstance(one, dict) else str(one) for one in value]
    if isinstance(value, dict):
        return Sentence.read(value, deepest)
    return value if isinstance(value, int) else str(value)


def sentence(code: str, /, **values: Value) -> Sentence:
    """Return a sentence."""
    return Sentence(code, values)


def quoted(text: str) -> Sentence:
    """Return somebody's own words, which are the same in every language."""
    return sentence("quoted", text=text)


def listed(values: Collection[str]) -> Value:
    """Return texts to list: escaped where needed, a long list cut short."""
    clean = [one if one.isprintable() else repr(one) for one in list(values)[:_MOST]]
    first: list[str | Sentence] = [one if len(one) <= _LONGEST else shown(one) for one in clean]
    return first if len(values) <= _MOST else sentence("list-cut", items=first, count=len(values))


class SentenceRenderer:
    """Makes text of sentences by a table of words, in English unless more is overridden."""

    comma, semicolon = ", ", "; "

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def template(self, code: str) -> str | None:
        """Return the words of a code, None where there are none."""
        return self._words.get(code)

    def word(self, kind: str, text: str) -> str:  # noqa: ARG002
        """Return a text that fills in a sentence; by ``kind``, the value's name, some are this program's."""
        return text

    def render(self, sentence: Sentence) -> str:
        """Return a sentence as text. Raises KeyError where a code or a value is of another version."""
        words = self.template(sentence.code)
        if words is None:
            if not sentence.text:
                raise KeyError(sentence.code)
            return sentence.text
        return words.format_map({kind: self._shown(kind, value) for kind, value in sentence.values.items()})

    def _shown(self, kind: str, value: Value) -> str:
        if isinstance(value, Sentence):
            return self.render(value)
        if isinstance(value, list):
            between = self.semicolon if any(isinstance(one, Sentence) for one in value) else self.comma
            return between.join(self._shown(kind, one) for one in value)
        return self.word(kind, str(value))
