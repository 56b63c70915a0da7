"""What is said in Chinese: ``chinese.yaml``, ``chinese_phrases.yaml``, causes in ``chinese_advice.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from platform_launch.files import yaml_values

_FOLDER = Path(__file__).parent


@cache
def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml_values((_FOLDER / name).read_bytes())
    return found


def words(section: str) -> Mapping[str, str]:
    """Return a section of the words."""
    section_words: Mapping[str, str] = _read("chinese.yaml")[section]
    return section_words


def phrases() -> Mapping[str, str]:
    """Return the words of phrases, by their English ones."""
    return _read("chinese_phrases.yaml")


def causes() -> Mapping[str, Mapping[str, str]]:
    """Return for each signature of ``why`` its title, what it means, what to do and more."""
    return _read("chinese_advice.yaml")
