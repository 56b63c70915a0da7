"""Answers of agents and of the broker as JSON. Phrases stay phrases, so that the reader can translate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from platform_launch.text import Phrase


def dumps(answer: Mapping[str, Any]) -> str:
    """Return an answer as one line."""
    return json.dumps(_written(answer))


def loads(data: str | bytes | bytearray) -> Any:
    """Return an answer. Raises ValueError for invalid JSON, or something that only looks like a phrase."""
    return json.loads(data, object_hook=_read)


def _written(value: object) -> object:
    if isinstance(value, Phrase):
        return value.document()
    if isinstance(value, Mapping):
        return {name: _written(one) for name, one in value.items()}
    return [_written(one) for one in value] if isinstance(value, (list, tuple)) else value


def _read(found: dict[str, Any]) -> object:
    if found.keys() != {"words", "values"}:
        return found
    # Phrases within it have been read by now.
    return Phrase.read(_written(found))
