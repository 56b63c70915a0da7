"""What nodes meet for, and which messages that needs. Launchers whose messages differ cannot meet.

Messages are read strictly, so a field more or less makes a launcher a stranger to the others. The name of the
protocol is therefore computed from all messages that travel: nobody has to think of it when one is changed,
and launchers of different versions meet as long as they understand each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.protocol import FIRST_LINES, SEALED_LINES
from platform_launch.sentences import Sentence

# To raise if the meaning of a message changes and no field does.
_REVISION = 1
_EVERY_PURPOSE = (*FIRST_LINES, *SEALED_LINES)


@dataclass(frozen=True)
class Purpose:
    """``messages`` are all that its nodes publish, join with, ask and answer; no others may travel."""

    name: str
    messages: tuple[type[Message], ...]

    def require(self, message: Message) -> None:
        """Raise TypeError for a message that the name of the protocol does not cover."""
        if type(message) not in self.messages:
            raise TypeError(f"{type(message).__name__} is none of the messages of purpose {self.name!r}")

    @cached_property
    def protocol(self) -> str:
        """A short name for the shape of all messages, the same wherever that is the same."""
        shapes: dict[str, str] = {}
        for kind in (*_EVERY_PURPOSE, *self.messages):
            _describe(kind, shapes)
        text = "\n".join([str(_REVISION), *(f"{name}: {shapes[name]}" for name in sorted(shapes))])
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def _describe(hint: Any, shapes: dict[str, str]) -> str:
    """Return how a type reads, and add the shapes of the dataclasses in it."""
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
        shapes[name] = ""  # known from here on: it may hold itself
        hints = get_type_hints(hint)
        shapes[name] = ", ".join(
            sorted(f"{field.name}: {_describe(hints[field.name], shapes)}" for field in fields(hint))
        )
    return name
