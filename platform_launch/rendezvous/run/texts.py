"""What a launcher asks and tells those of the other nodes: texts that their helpers carry and do not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from platform_launch.rendezvous.messages import MIB, Message

# Between the helpers.


@dataclass(frozen=True)
class RelayedText(Message):
    """What a launcher asks or answers."""

    most_bytes: ClassVar[int] = MIB

    text: str


# From the launcher.


@dataclass(frozen=True)
class SendRequest(Message):
    """All other nodes are asked something. ``number`` is the launcher's own count, ``body`` not read here."""

    most_bytes: ClassVar[int] = 256 * 1024

    number: int
    limit_s: float
    body: str


@dataclass(frozen=True)
class SendAnswer(Message):
    """The answer to what a node asked (``RequestReceived``)."""

    most_bytes: ClassVar[int] = MIB

    key: str
    body: str


@dataclass(frozen=True)
class SharedText(Message):
    """What a launcher tells whoever asks for it; what it told before is replaced. Goes on as it is."""

    text: str


@dataclass(frozen=True)
class ReadShared(Message):
    """What have all nodes shared?"""


# From the helper.


@dataclass(frozen=True)
class SharedTexts(Message):
    """What each node has shared last, by rank."""

    most_bytes: ClassVar[int] = 1024 * MIB

    texts: Mapping[int, str]


@dataclass(frozen=True)
class RequestReceived(Message):
    """Another node asks something; ``key`` tells its request from others."""

    most_bytes: ClassVar[int] = 256 * 1024

    key: str
    body: str


@dataclass(frozen=True)
class AnswersReceived(Message):
    """What the other nodes answered, by rank; ``silent`` did not: rank → place."""

    most_bytes: ClassVar[int] = 1024 * MIB

    number: int
    answers: Mapping[int, str]
    silent: Mapping[int, str]
