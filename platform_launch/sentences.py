"""Messages for people, as a code and values: words come where it is shown, in the reader's language.

Programs read the code, never the words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from platform_launch.errors import shown
from platform_launch.text import Listed, Phrase, asks_for_values_only, joined
from platform_launch.values import dataclass

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


Value = str | int | float | Sentence | list[str | Sentence]
# The code of a sentence that brings its template itself, as ``text``.
_OWN_TEMPLATE = "phrase"


def _written(value: Value) -> Any:
    if isinstance(value, list):
        return [_written(one) for one in value]
    return value.document() if isinstance(value, Sentence) else value


def _read(value: object, deepest: int) -> Value:
    if isinstance(value, list):
        return [Sentence.read(one, deepest) if isinstance(one, dict) else str(one) for one in value]
    if isinstance(value, dict):
        return Sentence.read(value, deepest)
    return value if isinstance(value, int | float) else str(value)


def sentence(code: str, /, **values: Value) -> Sentence:
    """Return a sentence."""
    return Sentence(code, values)


def as_value(text: object) -> Value:
    """Return a text as a value: a phrase keeps its template and values, so that it can be translated."""
    if not isinstance(text, Phrase) or isinstance(text, Listed):
        return text if isinstance(text, int | float) else str(text)
    return Sentence(_OWN_TEMPLATE, {name: as_value(one) for name, one in text.values.items()}, text.template)


def quoted(text: str) -> Sentence:
    """Return somebody's own words, which are the same in every language."""
    return sentence("quoted", text=text)


def listed(values: Collection[str]) -> Value:
    """Return texts to list: escaped where needed, a long list cut short."""
    clean = [one if one.isprintable() else repr(one) for one in list(values)[:_MOST]]
    first: list[str | Sentence] = [one if len(one) <= _LONGEST else shown(one) for one in clean]
    return first if len(values) <= _MOST else sentence("list-cut", items=first, count=len(values))


def phrase(sentence: Sentence, templates: Mapping[str, str], kinds: Collection[str] = ()) -> Phrase:
    """Return a sentence as a message, by the English templates of its codes.

    Values with a name of ``kinds`` are this program's own words, with templates such as ``role.admin``.
    Raises KeyError for a code or a value of another version.
    """
    template = templates.get(sentence.code)
    if sentence.code == _OWN_TEMPLATE and asks_for_values_only(sentence.text):
        template = sentence.text
    if template is None:
        if not sentence.text:
            raise KeyError(sentence.code)
        return Phrase(sentence.text)

    def message(name: str, value: Value) -> str | int | float:
        if isinstance(value, list):
            several = any(isinstance(one, Sentence) for one in value)
            return joined((message(name, one) for one in value), "; " if several else ", ")
        if isinstance(value, Sentence):
            return phrase(value, templates, kinds)
        word = templates.get(f"{name}.{value}") if name in kinds else None
        return value if word is None else Phrase(word)

    return Phrase.checked(template, {name: message(name, value) for name, value in sentence.values.items()})
