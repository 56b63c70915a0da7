"""The page's words: one catalogue file a language, keyed by message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from platform_launch.procguard.api.shapes import ProblemShape
from platform_launch.procguard.api.shapes.groups import GroupFailure

LANGUAGES = {"en": "English", "zh": "中文"}
FOLDER = Path(__file__).with_name("words")


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return every message of a language by its key."""
    words = yaml.safe_load((FOLDER / f"{language}.yaml").read_text("utf-8"))
    return {str(key): str(text) for key, text in words.items()}


def choose(cookie: str | None, accepted: str) -> str:
    """Return the language to speak: the one chosen, else the first known one of an Accept-Language header."""
    if cookie in LANGUAGES:
        return cookie
    for tag in sorted(accepted.split(","), key=_weight, reverse=True):
        language = tag.partition(";")[0].partition("-")[0].strip().lower()
        if language in LANGUAGES:
            return language
    return "en"


def _weight(tag: str) -> float:
    _, _, weight = tag.partition(";q=")
    try:
        return float(weight or 1)
    except ValueError:
        return 0.0


class Words:
    """Messages in one language. ``t("key", name=value)`` in a template; a missing key is an error."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._messages = catalogue(language)

    def __call__(self, key: str, **values: object) -> str:
        """Return a message with its values filled in."""
        return self._messages[key].format_map(values)

    def count(self, key: str, number: int, **values: object) -> str:
        """Return a message about so many of something, ``{n}`` in the text."""
        form = f"{key}.one" if number == 1 and f"{key}.one" in self._messages else f"{key}.other"
        return self(form, n=f"{number:,}", **values)

    def known(self, key: str, otherwise: str) -> str:
        """Return a message for a word that comes from elsewhere, or the word itself."""
        return self._messages.get(key, otherwise)

    def problem(self, problem: ProblemShape) -> tuple[str, str]:
        """Return what is wrong and what to do, by the problem's code, else in its own English."""
        try:
            text = self(f"problem.{problem.code}", **problem.values)
            return text, self(f"problem.{problem.code}.hint", **problem.values)
        except KeyError:
            return problem.text, problem.hint

    def failure(self, failure: GroupFailure) -> str:
        """Return why a group failed, by the failure's code, else in its own English."""
        try:
            text = self(f"failing.{failure.code}", **failure.values)
        except KeyError:
            return failure.text
        silent = failure.values.get("silent")
        return text + self("failing_while_silent", workers=silent) if silent else text

    def duration(self, seconds: float) -> str:
        """Return a length of time in one unit, as one would say it."""
        whole = max(0, int(seconds))
        for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
            if whole >= 2 * size:
                return self(f"duration.{unit}", n=whole // size)
        return self("duration.seconds", n=whole)

    def script(self) -> dict[str, str]:
        """Return what the page's scripts say: words of their own, and the problems of a refusal."""
        return {
            key.removeprefix("js."): text
            for key, text in self._messages.items()
            if key.startswith(("js.", "problem."))
        }
