"""Why a request is refused, or a group cannot start: a code and values, with words from ``problems.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from platform_launch.files import yaml_values
from platform_launch.procguard.api.shapes import Problem, Refusal
from platform_launch.text import Phrase, joined

HINT = ".hint"
_FILE = Path(__file__).with_name("problems.yaml")


@cache
def problem_templates() -> Mapping[str, str]:
    """Return the English templates by code; ``CODE.hint`` states what to do."""
    return {str(key): str(text) for key, text in yaml_values(_FILE.read_bytes()).items()}


def problem_phrases(code: str, values: Mapping[str, object]) -> tuple[Phrase, Phrase]:
    """Return what is wrong and what to do. Raises KeyError for a code or values of another version."""
    templates = problem_templates()
    text, hint = templates[code], templates.get(f"{code}{HINT}", "")
    shown = {name: joined(value) if isinstance(value, list) else value for name, value in values.items()}
    return Phrase.checked(text, shown), Phrase.checked(hint, shown)


def problem(code: str, **values: str | list[str]) -> Problem:
    """Return a problem with its English."""
    text, hint = problem_phrases(code, values)
    return Problem(code, str(text), str(hint), values)


class RequestRefused(Exception):  # noqa: N818 - an answer, not a fault
    """A refused request, which changed nothing. ``status`` is the HTTP status of the answer."""

    status = 409

    def __init__(self, code: str, *, problems: Sequence[Problem] = (), **values: str | list[str]) -> None:
        self.phrases = text, hint = problem_phrases(code, values)
        super().__init__(str(text))
        self.refusal = Refusal(
            error=str(text), hint=str(hint), problems=list(problems), code=code, values=values
        )


class NotFound(RequestRefused):
    """There is no such group, worker or user."""

    status = 404


class Unavailable(RequestRefused):
    """The database or a disk cannot be used now (full, locked, gone). Nothing changed: try again later."""

    status = 503


class Superseded(Unavailable):
    """Another server has taken over the database: this one decides nothing any more and should stop."""
