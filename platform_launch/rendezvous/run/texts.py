"""What the launchers of a run ask each other and share: texts that the rendezvous carries and does not
read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from platform_launch.rendezvous.messages import MIB, Message


@dataclass(frozen=True)
class RelayedText(Message):
    """What a launcher asks or answers."""

    most_bytes: ClassVar[int] = MIB

    text: str


@dataclass(frozen=True)
class SharedText(Message):
    """What a launcher shares with whoever asks for it; what it shared before is replaced."""

    text: str


@dataclass(frozen=True)
class SendRequest:
    """Ask all other nodes something. ``number`` is the launcher's own count."""

    number: int
    limit_s: float
    body: str


@dataclass(frozen=True)
class SendAnswer:
    """The answer to what another node asked (``RequestReceived``)."""

    key: str
    body: str


@dataclass(frozen=True)
class ReadShared:
    """What have all nodes shared?"""


@dataclass(frozen=True)
class SharedTexts:
    """What each node has shared last, by rank."""

    texts: Mapping[int, str]


@dataclass(frozen=True)
class RequestReceived:
    """Another node asks something; ``key`` tells its request from others.

    ``clock`` is this node's clock less that of node 0, and the most that this is wrong; None: not known.
    """

    key: str
    body: str
    clock: tuple[float, float] | None = None


@dataclass(frozen=True)
class AnswersReceived:
    """What the other nodes answered, by rank; ``silent`` did not: rank → host. ``clock`` as above."""

    number: int
    answers: Mapping[int, str]
    silent: Mapping[int, str]
    clock: tuple[float, float] | None = None


TextCommand = SendRequest | SendAnswer | SharedText | ReadShared
TextNews = SharedTexts | RequestReceived | AnswersReceived
