"""In which language a person is spoken to, and how an event, a refusal or a stage reads in it.

``--lang``, else PLATFORM_LAUNCH_LANG, else what the system's LC_ALL, LC_MESSAGES or LANG say. Known are
English, which stands beside each id in ``platform_launch.events``, and Chinese (``chinese.yaml``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce

from platform_launch.environment import Environment
from platform_launch.events import CATALOGUE, Event, filled, line
from platform_launch.sentences import Sentence, SentenceRenderer
from platform_launch.text import Phrase, seconds

VARIABLE = "PLATFORM_LAUNCH_LANG"
LANGUAGES = ("en", "zh")
_OF_THE_SYSTEM = ("LC_ALL", "LC_MESSAGES", "LANG")

# What joins values without a word.
_FIELD, _LETTER = re.compile(r"\{[^{}]*\}"), re.compile(r"\w")
_PUNCTUATION = (("; ", "；"), (", ", "，"), (": ", "："), (" (", "（"), (")", "）"))

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
        return filled(_with_ranks_in_chinese(_with_words_in_chinese(event)), template)
    if event.id in CATALOGUE:
        return line(event)
    fields = {**event.fields, **{name: _said(event.fields.get(name, "")) for name in ("what", "hint")}}
    return title_before(event.id) + line(replace(event, fields=fields))


def _with_words_in_chinese(event: Event) -> Event:
    """Put the phrases among the fields, and times, into Chinese."""
    fields = {name: _phrases_said(value) for name, value in event.fields.items()}
    if isinstance(lasted := fields.get("duration_s"), int | float):
        fields["duration"] = _said(seconds(lasted))
    return replace(event, fields=fields)


def _phrases_said(value: object) -> object:
    """Return a field of an event with its phrases in this language: a text without values may be a name."""
    if isinstance(value, (list, tuple)):
        return [_phrases_said(one) for one in value]
    return _said(value) if isinstance(value, Phrase) else value


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


def title_before(event_id: str) -> str:
    """Return what stands before the text of a finding or a refusal of this id: nothing in English."""
    title = _word("titles", event_id, "")
    return f"{title}：" if title else ""


def phrase_words(phrase: str) -> str:
    """Return a phrase in this language; what has no words in it stays English."""
    return str(_said(phrase))


def _said(value: object) -> object:
    if current() == "en" or not isinstance(value, str):
        return value
    from platform_launch.console import chinese

    template, values = (value.template, value.values) if isinstance(value, Phrase) else (str(value), {})
    words = chinese.phrases().get(template)
    if words is None and values and not _LETTER.search(_FIELD.sub("", template)):
        words = reduce(lambda text, pair: text.replace(*pair), _PUNCTUATION, template)
    return value if words is None else words.format(**{name: _value(one) for name, one in values.items()})


def _value(value: object) -> object:
    """Return a value of a phrase; a single word that is no phrase may be the name of something."""
    return _said(value) if isinstance(value, Phrase) or " " in str(value) else value


def why_word(english: str, language: str) -> str:
    """Return a word or phrase of the answer of ``platform-launch why`` in a language."""
    return _word("why", english, english, language)


def note_words(note: str, english: str, language: str) -> str:
    """Return the words of a note beside an answer, with its values' names, by its id."""
    return _word("notes", note, english, language)


def cause_title(cause: str, english: str, language: str) -> str:
    """Return what happened, by the id of a signature."""
    return _of_cause(cause, language).get("title", english)


def cause_advice(
    cause: str, means: str, fix: str, language: str, *, others_hold: bool = False
) -> tuple[str, str]:
    """Return what a cause means and what to do, by the id of a signature.

    ``others_hold``: of memory that ran out, other processes hold much.
    """
    known = _of_cause(cause, language)
    to_do = known.get("fix_others_hold", "") if others_hold else ""
    return known.get("means", means) if means else "", to_do or known.get("fix", fix) if fix else ""


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
