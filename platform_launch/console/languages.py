"""The language of messages, and :func:`translate`, which translates one.

The language is ``--lang``, otherwise PLATFORM_LAUNCH_LANG, otherwise that of LC_ALL, LC_MESSAGES or LANG.
English is in the code; every other language has one file of gettext's format under ``platform_launch/locale``
(``docs/decisions/0023-messages.md``). Reading English opens no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.events import Event, message
from platform_launch.text import Phrase, one_line

VARIABLE = "PLATFORM_LAUNCH_LANG"
LANGUAGES = ("en", "zh")
_OF_THE_SYSTEM = ("LC_ALL", "LC_MESSAGES", "LANG")

LOCALE = Path(__file__).parents[1] / "locale"
_LOCALES = {"zh": "zh_CN"}
_ENTRY = re.compile(r'^msgid "(.*)"\nmsgstr "(.*)"', re.M)

_chosen: list[str] = []


def choose(language: str) -> None:
    """Use one of ``LANGUAGES`` in this process, regardless of the variables."""
    _chosen[:] = [language]


def current(env: Mapping[str, str] | None = None) -> str:
    """Return the language of this process."""
    if _chosen:
        return _chosen[0]
    env = Environment.of_this_process(VARIABLE, *_OF_THE_SYSTEM) if env is None else env
    setting = next((env[name] for name in (VARIABLE, *_OF_THE_SYSTEM) if env.get(name)), "")
    return "zh" if setting.lower().startswith("zh") else "en"


def translate(text: Event | str, language: str = "") -> str:
    """Return a message in a language, by default this process's; messages without a translation stay English.

    An event becomes its line. A phrase is looked up by its template, and so are the phrases among its values,
    however deep. A plain text is a message without values; plain values are names and are never looked up.
    """
    if isinstance(text, Event):
        return one_line(translate(message(text), language))
    language = language or current()
    if language not in _LOCALES:
        return str(text)
    template = text.template if isinstance(text, Phrase) else text
    found = _looked_up(template, language)
    if not isinstance(text, Phrase):
        return found
    return text.filled(found, lambda value: translate(value, language))


def _looked_up(template: str, language: str) -> str:
    key = json.dumps(template, ensure_ascii=False)[1:-1]
    found = catalogue(language).get(key, "") if key else ""
    return str(json.loads(f'"{found}"')) if found else template


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return the translations by their English templates, both escaped as in the file."""
    path = LOCALE / _LOCALES[language] / "LC_MESSAGES" / "platform_launch.po"
    text = path.read_text("utf-8").replace('"\n"', "")  # an entry may be broken over several lines
    return dict(_ENTRY.findall(text))
