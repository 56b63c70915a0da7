"""In which language a person is spoken to, and how an event, a refusal or a stage reads in it.

``--lang``, else PLATFORM_LAUNCH_LANG, else what the system's LC_ALL, LC_MESSAGES or LANG say. Known are
English, which stands beside each id in ``platform_launch.events``, and Chinese (``chinese.yaml``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from platform_launch.environment import Environment
from platform_launch.events import CATALOGUE, Event, filled, line
from platform_launch.sentences import Sentence, SentenceRenderer
from platform_launch.text import Phrase

VARIABLE = "PLATFORM_LAUNCH_LANG"
LANGUAGES = ("en", "zh")
_OF_THE_SYSTEM = ("LC_ALL", "LC_MESSAGES", "LANG")

_chosen: list[str] = []


def choose(language: str) -> None:
    """Speak one of ``LANGUAGES`` in this process, whatever the variables say."""
    _chosen[:] = [language]


def current(env: Mapping[str, str] | None = None) -> str:
    """Return the language of this process."""
    if _chosen:
        return _chosen[0]
    env = Environment.of_this_process(VARIABLE, *_OF_THE_SYSTEM) if env is None else env
    setting = next((env[name] for name in (VARIABLE, *_OF_THE_SYSTEM) if env.get(name)), "")
    return "zh" if setting.lower().startswith("zh") else "en"


def event_line(event: Event) -> str:
    """Return the line for people, as :func:`platform_launch.events.line` does in English."""
    if current() == "en":
        return line(event)
    from platform_launch.console import chinese

    template = chinese.words("events").get(event.id)
    if template is not None:
        if event.id == "run-cost":
            event = replace(event, fields={"text": cost_words("", event.fields)})
        return filled(_with_ranks_in_chinese(_with_words_in_chinese(event)), template)
    if event.id in CATALOGUE:
        return line(event)
    fields = {**event.fields, **{name: _advice(event.fields.get(name, "")) for name in ("what", "hint")}}
    return title_before(event.id) + line(replace(event, fields=fields))


def _with_words_in_chinese(event: Event) -> Event:
    """Put the fields that hold English words, where their values are known beside them, into Chinese."""
    from platform_launch.console import chinese

    fields = dict(event.fields)
    if (what := chinese.words("processes").get(str(fields.get("what", "")))) is not None:
        fields["what"] = what
    if isinstance(lasted := fields.get("duration_s"), int | float):
        fields["duration"] = chinese.duration(lasted)
    reason = chinese.words("not_again").get(str(fields.get("kind", "")))
    if event.id == "not-restarted" and reason:
        fields["reason"] = reason.format(max_restarts=fields.get("max_restarts", ""))
    return replace(event, fields=fields)


def _with_ranks_in_chinese(event: Event) -> Event:
    """Put what is seen of ranks, which an event carries as codes and values, into Chinese words."""
    from platform_launch.console import chinese

    words, fields = SentenceRenderer(chinese.words("ranks")), dict(event.fields)
    headlines = fields.get("headlines")
    # Another version's sentence keeps its English words.
    with suppress(KeyError, ValueError):
        if isinstance(headlines, list):
            fields["headline"] = "；".join(words.render(Sentence.read(one)) for one in headlines)
        if "sentence" in fields:
            fields["text"] = f"  {words.render(Sentence.read(fields['sentence']))}"
    return replace(event, fields=fields)


def rank_words(seen: Sequence[Sentence], english: str) -> str:
    """Return what is seen of ranks; what has no words in this language stays English."""
    if current() == "en":
        return english
    from platform_launch.console import chinese

    words = SentenceRenderer(chinese.words("ranks"))
    with suppress(KeyError, ValueError):
        return "；".join(map(words.render, seen))
    return english


def _word(section: str, key: str, english: str, language: str = "") -> str:
    """Return a word of a section of ``chinese.yaml``, or in English; by default as this process speaks."""
    if (language or current()) == "en":
        return english
    from platform_launch.console import chinese

    return chinese.words(section).get(key, english)


def _of_cause(cause: str, language: str) -> Mapping[str, str]:
    """Return what is said of a signature; nothing in English, which whoever asks knows."""
    if language == "en":
        return {}
    from platform_launch.console import chinese

    return chinese.causes().get(cause, {})


def stage_title(number: int, english: str) -> str:
    """Return the title of a launch's stage."""
    return _word("stages", str(number), english)


def box_word(english: str) -> str:
    """Return a name, or a title with its fields, of the box that closes or opens what is shown."""
    return _word("box", english, english)


def cost_words(english: str, fields: Mapping[str, object]) -> str:
    """Return what a run cost, by the fields of the event that says it."""
    if current() == "en":
        return english
    from platform_launch.console import chinese

    return chinese.cost_in_chinese(fields)


def title_before(event_id: str) -> str:
    """Return what stands before the text of a finding or a refusal of this id: nothing in English."""
    title = _word("titles", event_id, "")
    return f"{title}：" if title else ""


def advice_words(advice: str) -> str:
    """Return what a finding says, or what to do; what has no words in this language stays English."""
    return str(_advice(advice))


def _advice(value: object) -> object:
    if current() == "en" or not isinstance(value, str):
        return value
    from platform_launch.console import chinese

    template, values = (value.template, value.values) if isinstance(value, Phrase) else (str(value), {})
    words = chinese.words("advice").get(template)
    return value if words is None else words.format(**{name: _advice(one) for name, one in values.items()})


def why_word(english: str, language: str) -> str:
    """Return a word or phrase of the answer of ``platform-launch why`` in a language."""
    return _word("why", english, english, language)


def note_words(note: str, english: str, language: str) -> str:
    """Return the words of a note beside an answer, with its values' names, by its id."""
    return _word("notes", note, english, language)


def cause_title(cause: str, english: str, language: str) -> str:
    """Return what happened, by the id of a signature."""
    return _of_cause(cause, language).get("title", english)


def cause_advice(cause: str, means: str, fix: str, language: str) -> tuple[str, str]:
    """Return what a cause means and what to do, by the id of a signature."""
    known = _of_cause(cause, language)
    return known.get("means", means) if means else "", known.get("fix", fix) if fix else ""


def retry_reason(cause: str, retry: str, english: str, language: str) -> str:
    """Return why to start the same again or not, by the id of a signature and the answer."""
    known = _of_cause(cause, language)
    # What every node shows forbids what would have helped by itself: only then the answer is no.
    reason = known.get("everywhere", known.get("because")) if retry == "no" else known.get("because")
    return reason or why_word(english, language)


def consequence(signature: str, english: str, count: int, of: str, language: str) -> str:
    """Return what then happened to so many others, by the id of a signature."""
    then = _of_cause(signature, language).get("then")
    if then is None:
        return english
    return f"另有 {count} 个 rank {then}" if of == "ranks" else f"其他进程{then}（{count} 行）"
