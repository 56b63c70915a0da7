"""The purpose of a rendezvous, and the messages it needs. Launchers whose messages differ reject each other.

Messages are read strictly, so an added or removed field makes launchers incompatible. The name of the
protocol is therefore computed from all messages: it changes automatically with them, and launchers of
different versions work together as long as their messages are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.protocol import FIRST_LINES, SEALED_LINES
from platform_launch.sentences import Sentence
from platform_launch.values import dataclass

# Increase this if the meaning of a message changes but its fields do not.
_REVISION = 1
_EVERY_PURPOSE = (*FIRST_LINES, *SEALED_LINES)


@dataclass(frozen=True)
class Purpose:
    """``messages`` are all that its nodes publish, join with, ask and answer; no others may be sent."""

    name: str
    messages: tuple[type[Message], ...]

    def require(self, message: Message) -> None:
        """Raise TypeError for a message that the name of the protocol does not cover."""
        if type(message) not in self.messages:
            raise TypeError(f"{type(message).__name__} is none of the messages of purpose {self.name!r}")

    @cached_property
    def protocol(self) -> str:
        """A short hash of the shapes of all messages."""
        shapes: dict[str, str] = {}
        for kind in (*_EVERY_PURPOSE, *self.messages):
            _describe(kind, shapes)
        text = "\n".join([str(_REVISION), *(f"{name}: {shapes[name]}" for name in sorted(shapes))])
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def _describe(hint: Any, shapes: dict[str, str]) -> str:
    """Return a type as text, and add the shapes of the dataclasses in it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe(one, shapes) for one in arguments if one is not NoneType) + " or none"
    if origin is tuple:
        return f"list of {_describe(arguments[0], shapes)}"
    if origin is not None and issubclass(origin, Mapping):
        return f"{arguments[0].__name__} to {_describe(arguments[1], shapes)}"
    if issubclass(hint, Enum):
        return " or ".join(sorted(repr(member.value) for member in hint))
    name: str = hint.__name__
    if is_dataclass(hint) and hint is not Sentence and name not in shapes:
        shapes[name] = ""  # now known, because it may contain itself
        hints = get_type_hints(hint)
        shapes[name] = ", ".join(
            sorted(f"{field.name}: {_describe(hints[field.name], shapes)}" for field in fields(hint))
        )
    return name
