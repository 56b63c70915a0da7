"""The page's words: English templates by key, which :func:`translate` puts into the reader's language."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from platform_launch.console.languages import translate
from platform_launch.files import yaml_values
from platform_launch.procguard.api.english import TEMPLATES as SENTENCES
from platform_launch.procguard.api.shapes import Problem, Refusal
from platform_launch.procguard.api.shapes.events import AuditEvent
from platform_launch.procguard.api.shapes.groups import GroupFailure
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

    def __call__(self, key: str, **values: object) -> str:
        """Return a message with its values filled in."""
        return translate(Phrase(templates()[key], **values), self.language)

    def count(self, key: str, number: int, **values: object) -> str:
        """Return a message about so many of something, ``{n}`` in the text."""
        form = f"{key}.one" if number == 1 and f"{key}.one" in templates() else f"{key}.other"
        return self(form, n=f"{number:,}", **values)

    def known(self, key: str, otherwise: str) -> str:
        """Return a message for a word that comes from elsewhere, or the word itself."""
        return self(key) if key in templates() else otherwise

    def problem(self, problem: Problem) -> tuple[str, str]:
        """Return what is wrong and what to do, by the problem's code, else in its own English."""
        try:
            text = self(f"problem.{problem.code}", **problem.values)
            return text, self(f"problem.{problem.code}.hint", **problem.values)
        except KeyError:
            return problem.text, problem.hint

    def refusal(self, refusal: Refusal) -> tuple[str, str]:
        """Return why something cannot be shown and what to do."""
        return self.problem(Problem(refusal.code, refusal.error, refusal.hint, refusal.values))

    def render(self, sentence: Sentence) -> str:
        """Return a sentence. Raises KeyError for one of another version."""
        return translate(phrase(sentence, {**templates(), **SENTENCES}, _KINDS), self.language)

    def translated(self, sentence: Sentence, otherwise: str) -> str:
        """Return a sentence in this language; ``otherwise`` if it is of another version."""
        try:
            return self.render(sentence)
        except KeyError:
            return otherwise

    def failure(self, failure: GroupFailure) -> str:
        """Return why a group failed, by the failure's code, else in its own English."""
        return self.translated(sentence_of(failure), failure.text)

    def reason(self, of: WorkerShape | QuarantineReport) -> str:
        """Return why a worker or a node is what it is; persons and older agents give words of their own."""
        return self.translated(of.reason_sentence, of.reason) if of.reason_sentence else of.reason

    def verdict(self, of: GroupFailure | WorkerShape) -> str:
        """Return what ``why`` makes of a log."""
        return "\n".join(of.why.lines(self.language)) if of.why else of.verdict

    def cause_line(self, of: GroupFailure | WorkerShape) -> str:
        """Return the first line of that."""
        return self.verdict(of).partition("\n")[0]

    def detail(self, event: AuditEvent) -> str:
        """Return an event's details."""
        if not event.code:
            return event.detail
        return self.translated(Sentence(code=event.code, values=event.values), event.detail)

    def object(self, event: AuditEvent) -> str:
        """Return what an event is about: a name, several nodes, or no group."""
        count = event.values.get("count")
        if event.code == "nodes" and isinstance(count, int) and count > 1:
            return self.count("count.nodes", count)
        return self("move.nowhere") if event.code == "workers-taken-out" else event.object

    def duration(self, seconds: float) -> str:
        """Return a length of time in one unit, as one would say it."""
        whole = max(0, int(seconds))
        for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
            if whole >= 2 * size:
                return self(f"duration.{unit}", n=whole // size)
        return self("duration.seconds", n=whole)

    def script(self) -> Mapping[str, str]:
        """Return what the page's scripts say: words of their own, and the problems of a refusal."""
        return _of_scripts(self.language)


@cache
def _of_scripts(language: str) -> Mapping[str, str]:
    return {
        key.removeprefix("js."): translate(text, language)
        for key, text in templates().items()
        if key.startswith(("js.", "problem."))
    }
