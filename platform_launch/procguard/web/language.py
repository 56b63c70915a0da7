"""The page's messages: English templates by key, translated into the reader's language."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from platform_launch.console.languages import translate
from platform_launch.files import yaml_values
from platform_launch.procguard.api.english import TEMPLATES as SENTENCES
from platform_launch.procguard.api.refused import problem_phrases, problem_templates
from platform_launch.procguard.api.shapes import Problem, Refusal
from platform_launch.procguard.api.shapes.groups import GroupFailure
from platform_launch.procguard.api.shapes.history import AuditEvent
from platform_launch.procguard.api.shapes.workers import WorkerShape
from platform_launch.procguard.api.wire import QuarantineReport
from platform_launch.procguard.core.failures import sentence_of
from platform_launch.sentences import Sentence, phrase
from platform_launch.text import Phrase

LANGUAGES = {"en": "English", "zh": "中文"}
_KINDS = ("field", "role", "setting", "state")
_FILE = Path(__file__).with_name("words.yaml")


@cache
def templates() -> Mapping[str, str]:
    """Return the English template of every message by its key."""
    return {str(key): str(text) for key, text in yaml_values(_FILE.read_bytes()).items()}


def choose(cookie: str | None, accepted: str) -> str:
    """Return the page's language: the cookie's, else the first known one of the Accept-Language header."""
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


@cache
def _constant(key: str, language: str) -> str:
    return translate(Phrase(templates()[key]), language)


class Words:
    """Messages in one language. ``t("key", name=value)`` in a template; a missing key is an error."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, key: str, **values: object) -> str:
        """Return a message with its values filled in."""
        if not values:
            return _constant(key, self.language)
        return translate(Phrase(templates()[key], **values), self.language)

    def count(self, key: str, number: int, **values: object) -> str:
        """Return a message about a number of things, ``{n}`` in its template."""
        form = f"{key}.one" if number == 1 and f"{key}.one" in templates() else f"{key}.other"
        return self(form, n=f"{number:,}", **values)

    def known(self, key: str, otherwise: str) -> str:
        """Return the message of a key, or ``otherwise`` if there is none."""
        return self(key) if key in templates() else otherwise

    def problem(self, problem: Problem) -> tuple[str, str]:
        """Return what is wrong and what to do, by the problem's code; unknown ones in their own English."""
        language = self.language
        try:
            parts = problem_phrases(problem.code, problem.values)
        except KeyError:
            language, parts = "en", (Phrase(problem.text), Phrase(problem.hint))
        text, hint = (_sentence(translate(part, language), part, language) for part in parts)
        return text, hint

    def refusal(self, refusal: Refusal) -> tuple[str, str]:
        """Return why something cannot be shown, and what to do."""
        return self.problem(Problem(refusal.code, refusal.error, refusal.hint, refusal.values))

    def render(self, sentence: Sentence) -> str:
        """Return a sentence. Raises KeyError for a code of another version."""
        return translate(phrase(sentence, {**templates(), **SENTENCES}, _KINDS), self.language)

    def translated(self, sentence: Sentence, otherwise: str) -> str:
        """Return a sentence in this language; ``otherwise`` if its code is of another version."""
        try:
            return self.render(sentence)
        except KeyError:
            return otherwise

    def failure(self, failure: GroupFailure) -> str:
        """Return why a group failed, by the failure's code; unknown ones in their own English."""
        return self.translated(sentence_of(failure), failure.text)

    def reason(self, of: WorkerShape | QuarantineReport) -> str:
        """Return the reason of a worker or a node; free text and that of older agents as it is."""
        return self.translated(of.reason_sentence, of.reason) if of.reason_sentence else of.reason

    def verdict(self, of: GroupFailure | WorkerShape) -> str:
        """Return the result of ``why`` for a log."""
        return "\n".join(of.why.lines(self.language)) if of.why else of.verdict

    def cause_line(self, of: GroupFailure | WorkerShape) -> str:
        """Return the first line of the verdict."""
        return self.verdict(of).partition("\n")[0]

    def detail(self, event: AuditEvent) -> str:
        """Return an event's details."""
        if not event.code:
            return event.detail
        return self.translated(Sentence(code=event.code, values=event.values), event.detail)

    def object(self, event: AuditEvent) -> str:
        """Return the object of an event: a name, several nodes, or no group."""
        count = event.values.get("count")
        if event.code == "nodes" and isinstance(count, int) and count > 1:
            return self.count("count.nodes", count)
        return self("move.nowhere") if event.code == "workers-taken-out" else event.object

    def duration(self, seconds: float) -> str:
        """Return a duration in one unit."""
        whole = max(0, int(seconds))
        for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
            if whole >= 2 * size:
                return self(f"duration.{unit}", n=whole // size)
        return self("duration.seconds", n=whole)

    def script(self) -> Mapping[str, str]:
        """Return the messages for the page's scripts, and those for refusals."""
        return _of_scripts(self.language)


@cache
def _of_scripts(language: str) -> Mapping[str, str]:
    own = {
        key.removeprefix("js."): translate(text, language)
        for key, text in templates().items()
        if key.startswith("js.")
    }
    problems = {
        f"problem.{key}": _sentence(translate(text, language), text, language)
        for key, text in problem_templates().items()
    }
    return own | problems


def _sentence(text: str, template: str, language: str) -> str:
    """Return a message as a sentence. A value at its beginning is not capitalized."""
    if not text:
        return ""
    begins_with_value = getattr(template, "template", template).startswith("{")
    return (text if begins_with_value else text[0].upper() + text[1:]) + ("。" if language == "zh" else ".")
