"""Advice for exceptions without a signature: by what their frames do, their type, and who raised them.

The rules are in ``exception_rules.yaml``; comments at its top explain each field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from platform_launch.console.languages import translate
from platform_launch.files import yaml_values
from platform_launch.why.lines.line import shown
from platform_launch.why.messages.exceptions import Raised, called, condition, operation, package

_FILE = Path(__file__).with_name("exception_rules.yaml")
_LONGEST_VALUE = 120
_FIELD = re.compile(r"\{(\w+)(?:\|([^{}]*))?\}")
# Marks our own words in place of a value. Chinese has no spaces around them, unlike around a Latin value.
_OURS = "\0"
_UNSPACED = re.compile(r"(?<=[^\0-\x7f]) \0(?=[^\0-\x7f])|(?<=[^\0-\x7f])\0 (?=[^\0-\x7f])|\0")


@dataclass(frozen=True)
class ExceptionRule:
    """One kind of exception: when the rule applies, and what an expert would say about it at first sight."""

    id: str
    meaning: str
    fix: str
    type: str = ""
    message: str = ""
    does: str = ""
    package: str | None = None
    called: str | None = None
    code: str = ""
    because: str = ""

    def matches(self, raised: Raised) -> dict[str, str] | None:
        """Return the named groups of its conditions' matches; None if it does not apply."""
        if self.does and operation(raised) not in self.does.split("|"):
            return None
        if self.called is not None and called(raised) == package(raised):
            return None
        source = condition(raised.innermost.source) if raised.innermost is not None else ""
        found: dict[str, str] = {}
        for pattern, text in (
            (f"^(?:{self.type})$" if self.type else "", raised.type.rpartition(".")[2]),
            (self.package, package(raised)),
            (self.called, called(raised)),
            (self.code, source),
            (self.message, raised.whole_message),
        ):
            match = re.search(pattern, text) if pattern else None  # most are never needed
            if pattern and match is None:
                return None
            found |= {name: value for name, value in (match.groupdict() if match else {}).items() if value}
        return {name: _bounded(value) for name, value in found.items()}


def rule_of(raised: Raised) -> tuple[ExceptionRule, dict[str, str]] | None:
    """Return the first rule that applies to an exception, and the words that it found; None without one."""
    for rule in rules():
        if (found := rule.matches(raised)) is not None:
            return rule, found
    return None


@lru_cache(maxsize=1)
def rules() -> tuple[ExceptionRule, ...]:
    """Return the shipped rules, in the order in which they are tried."""
    entries = yaml_values(_FILE.read_bytes())
    return tuple(ExceptionRule(**entry) for entry in entries)


def filled(template: str, found: Mapping[str, str], language: str = "en") -> str:
    """Return a text with the found words: ``{path}``, or ``{path|the file}`` if there may be none."""

    def value(field: re.Match[str]) -> str:
        return _bounded(found[field[1]]) if field[1] in found else f"{_OURS}{field[2] or ''}{_OURS}"

    return _UNSPACED.sub("", _FIELD.sub(value, translate(template, language)))


def _bounded(value: str) -> str:
    value = shown(value)
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"
