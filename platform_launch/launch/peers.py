"""Questions of the monitors to the other nodes, sent over the rendezvous.

Questions and answers are messages of this module, packed into texts that the rendezvous only passes on.
"""

from __future__ import annotations

import base64
import binascii
import signal
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import ClassVar, TypeVar

from platform_launch.observe.arrivals import ClockOffset
from platform_launch.observe.hang import HangFinding
from platform_launch.observe.look import RankTraceFile
from platform_launch.observe.monitor import HangReport, NodeReply, Replies
from platform_launch.observe.slow_ranks import NodeArrivals, PaceChange, RankSamples, SlowFinding
from platform_launch.observe.snapshot import NodeSnapshot, shortened
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.run.texts import (
    AnswersReceived,
    RequestReceived,
    SendAnswer,
    SendRequest,
    TextCommand,
    TextNews,
)
from platform_launch.supervise.signals import WARNING

# What one node's snapshot may unpack to.
_MOST_BYTES = 16 * 1024 * 1024
# The rendezvous delivers a question and its answers within three heartbeats.
_WAY_S = 4.0


class ObserveMessage(Message):
    """A message between the monitors of two nodes."""

    most_bytes: ClassVar[int] = _MOST_BYTES


_Answer = TypeVar("_Answer", bound=ObserveMessage)


@dataclass(frozen=True)
class StillQuestion(ObserveMessage):
    """Has your node made progress in the last ``still_s``? If not, what is its snapshot?"""

    still_s: float


@dataclass(frozen=True)
class StillAnswer(ObserveMessage):
    """See NodeReply."""

    still_s: float
    snapshot: NodeSnapshot | None = None


@dataclass(frozen=True)
class HangNotice(ObserveMessage):
    """A finding for all nodes to report, see HangReport. There is no answer."""

    still_s: float
    finding: HangFinding
    hang: int


@dataclass(frozen=True)
class SaveNotice(ObserveMessage):
    """Another node was warned by this signal (USR1, USR2): all ranks should save. There is no answer."""

    signal: str


@dataclass(frozen=True)
class ArrivalsQuestion(ObserveMessage):
    """When did your ranks reach their collectives since then?"""

    since_s: float


@dataclass(frozen=True)
class ArrivalsAnswer(ObserveMessage):
    """See NodeArrivals."""

    arrivals: NodeArrivals


@dataclass(frozen=True)
class SamplesQuestion(ObserveMessage):
    """What are these ranks doing, if they are yours, and some others?"""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class SamplesAnswer(ObserveMessage):
    """See RankSamples."""

    samples: tuple[RankSamples, ...]


@dataclass(frozen=True)
class SlowNotice(ObserveMessage):
    """A rank became slow, or is slow no longer, for all nodes to report. There is no answer."""

    finding: SlowFinding
    begins: bool


@dataclass(frozen=True)
class PaceNotice(ObserveMessage):
    """The job's pace changed, for all nodes to report. There is no answer."""

    change: PaceChange


@dataclass(frozen=True)
class ProfileQuestion(ObserveMessage):
    """Run torch's profiler on these of your ranks, all if none is named."""

    seconds: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ProfileAnswer(ObserveMessage):
    """The traces that were written on a node, and what it knows of its clock."""

    traces: tuple[RankTraceFile, ...]
    host: str
    clock: ClockOffset | None = None


@dataclass(frozen=True)
class TracePosition:
    """Where a part of the trace of a process begins."""

    pid: int
    offset: int


@dataclass(frozen=True)
class TraceQuestion(ObserveMessage):
    """Send a part of a trace, by node rank."""

    parts: Mapping[int, TracePosition]


@dataclass(frozen=True)
class TraceAnswer(ObserveMessage):
    """The part, in base64; empty if there is none."""

    data: str


class LinkPeers:
    """Queries the other nodes over a link; ``answer`` replies to their questions, ``noticed`` is called with
    their findings.

    ``also`` gets every other message, and returns the answer. ``clock`` is this node's clock offset.
    """

    def __init__(
        self,
        send: Callable[[TextCommand], None],
        answer: Callable[[float], NodeReply],
        noticed: Callable[[HangReport], None],
        also: Callable[[ObserveMessage], ObserveMessage | None] = lambda _message: None,
    ) -> None:
        self._also = also
        self._send = send
        self._answer = answer
        self._noticed = noticed
        self.clock: ClockOffset | None = None
        self._number = 0
        self._answered: dict[int, AnswersReceived | None] = {}  # to the questions that wait for answers
        self._changed = Condition()

    def query(self, still_s: float, limit_s: float) -> Replies:
        """Query all nodes, and return the replies that arrive in time."""
        answers, silent = self.exchange(StillQuestion(still_s), StillAnswer, limit_s)
        given = {rank: NodeReply(answer.still_s, answer.snapshot) for rank, answer in answers.items()}
        return Replies(given, silent)

    def exchange(
        self, question: ObserveMessage, kind: type[_Answer], limit_s: float
    ) -> tuple[dict[int, _Answer], Mapping[int, str]]:
        """Send a question to all nodes; return the answers of a kind that arrive in time, by node rank.

        The second value is the hosts of the silent nodes.
        """
        number = self._next_number()
        with self._changed:
            self._answered[number] = None
        self._send(SendRequest(number, limit_s, pack(question)))
        with self._changed:
            self._changed.wait_for(lambda: self._answered[number] is not None, limit_s + _WAY_S)
            answered = self._answered.pop(number)
        if answered is None:
            return {}, {}
        given = {}
        for rank, text in answered.answers.items():
            with suppress(InvalidMessageError):
                if isinstance(answer := unpack(text), kind):
                    given[rank] = answer
        return given, answered.silent

    def report(self, report: HangReport) -> None:
        """Send a finding to all nodes."""
        self.notify(HangNotice(report.still_s, report.finding, report.hang))

    def notify(self, notice: ObserveMessage) -> None:
        """Send all nodes a message without an answer."""
        self._send(SendRequest(self._next_number(), _WAY_S, pack(notice)))

    def receive(self, message: TextNews) -> None:
        """Handle a message of the link; slow answers are made in their own thread."""
        if isinstance(message, (AnswersReceived, RequestReceived)) and message.clock is not None:
            self.clock = ClockOffset(*message.clock)
        if isinstance(message, AnswersReceived):
            with self._changed:
                if message.number in self._answered:  # otherwise it is too late, or belongs to a notice
                    self._answered[message.number] = message
                    self._changed.notify_all()
        elif isinstance(message, RequestReceived):
            Thread(target=self._handle, args=(message,), name="hang-answer", daemon=True).start()

    def _next_number(self) -> int:
        with self._changed:
            self._number += 1
            return self._number

    def _handle(self, request: RequestReceived) -> None:
        with suppress(InvalidMessageError):
            question = unpack(request.body)
            if isinstance(question, StillQuestion):
                reply = self._answer(question.still_s)
                answer = StillAnswer(reply.still_s, reply.snapshot and shortened(reply.snapshot))
                self._send(SendAnswer(request.key, pack(answer)))
            elif isinstance(question, HangNotice):
                with suppress(KeyError):  # a sentence of another version, which its node has reported
                    self._noticed(HangReport(question.still_s, question.finding, hang=question.hang))
            elif (also := self._also(question)) is not None:
                self._send(SendAnswer(request.key, pack(also)))


def save_notice(number: signal.Signals) -> SendRequest:
    """Return the message that warns all other nodes."""
    return SendRequest(0, _WAY_S, pack(SaveNotice(number.name)))  # 0: not a question


def read_save_notice(message: TextNews) -> signal.Signals | None:
    """Return the signal of another node's warning, None if the message is something else."""
    if isinstance(message, RequestReceived):
        with suppress(InvalidMessageError, KeyError):
            notice = unpack(message.body)
            if isinstance(notice, SaveNotice) and (number := signal.Signals[notice.signal]) in WARNING:
                return number
    return None


def pack(message: ObserveMessage) -> str:
    """Return a message as text: stacks are repetitive and shrink to a tenth."""
    return base64.b64encode(zlib.compress(encode(message))).decode()


def unpack(text: str) -> ObserveMessage:
    """Read :func:`pack` back, which a stranger may have written. Raises InvalidMessageError."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    except (zlib.error, binascii.Error, ValueError) as error:
        raise InvalidMessageError(f"expected a packed message: {error}") from error
    return decode(data, ObserveMessage)
