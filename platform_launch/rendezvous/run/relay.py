"""Carries what launchers ask each other while a run goes on; the bodies are not read here."""

from __future__ import annotations

from collections.abc import Callable

from platform_launch.rendezvous.messages import InvalidMessageError
from platform_launch.rendezvous.participant import Participant, PendingRequest
from platform_launch.rendezvous.protocol import OpenRequest
from platform_launch.rendezvous.run.texts import (
    AnswersReceived,
    ReadShared,
    RelayedText,
    RequestReceived,
    SendRequest,
    SharedText,
    SharedTexts,
    TextCommand,
    TextNews,
)

_MOST_WAITING = 64


class RequestRelay:
    """The questions of this node's launcher, and those to it."""

    def __init__(self, emit: Callable[[TextNews], None]) -> None:
        self._emit = emit
        self._inquiries: dict[int, PendingRequest] = {}
        self._requests: dict[str, OpenRequest] = {}

    def pass_on(self, command: TextCommand, participant: Participant) -> None:
        """Pass on what the launcher wants. Raises ConnectionLostError."""
        if isinstance(command, SharedText):
            participant.publish(command)
        elif isinstance(command, ReadShared):
            shared = participant.values(SharedText)
            self._emit(SharedTexts({rank: value.text for rank, value in shared.items()}))
        elif isinstance(command, SendRequest):
            inquiry = participant.ask(RelayedText(command.body), limit_s=command.limit_s)
            self._inquiries[command.number] = inquiry
        elif command.key in self._requests:
            try:
                participant.answer(self._requests.pop(command.key), RelayedText(command.body))
            except InvalidMessageError:
                return  # too long: whoever asks counts this node among the silent ones

    def step(self, participant: Participant) -> None:
        """Bring the launcher what has come; call it after each step of the participant."""
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
                        seat.node_rank: body.text
                        for seat, body in inquiry.answers.items()
                        if isinstance(body, RelayedText) and seat.node_rank is not None
                    },
                    {seat.node_rank: seat.place for seat in inquiry.silent if seat.node_rank is not None},
                    participant.clock,
                )
            )
