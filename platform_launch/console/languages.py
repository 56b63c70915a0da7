"""In which language a person is spoken to, and how an event, a refusal or a stage reads in it.

``--lang``, else PLATFORM_LAUNCH_LANG, else what the system's LC_ALL, LC_MESSAGES or LANG say. Known are
English, which stands beside each id in ``platform_launch.events``, and Chinese (``chinese``).
"""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.environment import Environment
from platform_launch.events import CATALOGUE, Event, filled, line

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
    env = Environment.of_this_process() if env is None else env
    said = next((env[name] for name in (VARIABLE, *_OF_THE_SYSTEM) if env.get(name)), "")
    return "zh" if said.lower().startswith("zh") else "en"


def event_line(said: Event) -> str:
    """Return the line for people, as :func:`platform_launch.events.line` does in English."""
    if current() == "en":
        return line(said)
    from platform_launch.console import chinese

    template = chinese.EVENTS.get(said.id)
    if template is not None:
        return filled(said, template)
    title = chinese.TITLES.get(said.id) if said.id not in CATALOGUE else None
    return f"{title}：{line(said)}" if title else line(said)


def stage_title(number: int, english: str) -> str:
    """Return the title of a launch's stage."""
    if current() == "en":
        return english
    from platform_launch.console import chinese

    return chinese.STAGES.get(number, english)


def title_before(event_id: str) -> str:
    """Return what stands before the text of a finding or a refusal of this id: nothing in English."""
    if current() == "en":
        return ""
    from platform_launch.console import chinese

    title = chinese.TITLES.get(event_id)
    return f"{title}：" if title else ""


def why_word(english: str) -> str:
    """Return a word or phrase of the answer of ``platform-launch why``."""
    if current() == "en":
        return english
    from platform_launch.console import chinese_causes

    return chinese_causes.WORDS.get(english, english)


def cause_title(cause: str, english: str) -> str:
    """Return what happened, by the id of a signature."""
    if current() == "en":
        return english
    from platform_launch.console import chinese_causes

    return chinese_causes.CAUSES.get(cause, english)
