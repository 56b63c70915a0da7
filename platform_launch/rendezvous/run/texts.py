"""Texts that the launchers of a run send each other: questions, answers, and values that a node shares.

The rendezvous passes them on and does not read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from platform_launch.rendezvous.messages import MIB, InvalidMessageError, Message
from platform_launch.values import dataclass

if TYPE_CHECKING:  # a node alone loads this module, and no rendezvous
    from platform_launch.rendezvous.participant import Participant, PendingRequest
    from platform_launch.rendezvous.protocol import OpenRequest

_MOST_WAITING = 64


@dataclass(frozen=True)
class RelayedText(Message):
    """What a launcher asks or answers."""

    most_bytes: ClassVar[int] = MIB

    text: str


@dataclass(frozen=True)
class SharedText(Message):
    """What a launcher shares with nodes that request it; replaces what it shared before."""

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
    """A request of another node; ``key`` identifies it.

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


class RequestRelay:
    """Passes on the questions of this node's launcher, and brings it those of others."""

    def __init__(self, emit: Callable[[TextNews], None]) -> None:
        self._emit = emit
        self._inquiries: dict[int, PendingRequest] = {}
        self._requests: dict[str, OpenRequest] = {}

    def pass_on(self, command: TextCommand, participant: Participant) -> None:
        """Send what the launcher asks for. Raises ConnectionLostError."""
        if isinstance(command, SharedText):
            participant.publish(command)
        elif isinstance(command, ReadShared):
            shared = participant.values(SharedText)
            self._emit(SharedTexts({rank: value.text for rank, value in shared.items()}))
        elif isinstance(command, SendRequest):
            inquiry = participant.query(RelayedText(command.body), limit_s=command.limit_s)
            self._inquiries[command.number] = inquiry
        elif command.key in self._requests:
            try:
                participant.answer(self._requests.pop(command.key), RelayedText(command.body))
            except InvalidMessageError:
                return  # too long: the node that asked counts this one as silent

    def step(self, participant: Participant) -> None:
        """Pass the launcher what has arrived. Call it after each step of the participant."""
        for request in participant.requests():
            if isinstance(request.body, RelayedText):
                key = f"{request.asker}-{request.number}"
                self._requests[key] = request
                self._emit(RequestReceived(key, request.body.text, participant.clock))
        while len(self._requests) > _MOST_WAITING:
            del self._requests[next(iter(self._requests))]
        for number in [number for number, inquiry in self._inquiries.items() if inquiry.done]:
            inquiry = self._inquiries.pop(number)
            self._emit(
                AnswersReceived(
                    number,
                    {
                        member.node_rank: body.text
                        for member, body in inquiry.answers.items()
                        if isinstance(body, RelayedText) and member.node_rank is not None
                    },
                    {
                        member.node_rank: member.place
                        for member in inquiry.silent
                        if member.node_rank is not None
                    },
                    participant.clock,
                )
            )
