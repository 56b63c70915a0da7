"""Inspection: what one agent reports about the ranks of a worker, and what people see of the whole group."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from platform_launch.observe.snapshot import RankSnapshot
from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.api.wire import MAX_WORKERS_PER_NODE, Number, Question, WireMessage
from platform_launch.sentences import Sentence


class RanksSeen(WireMessage):
    """What an agent reports about the ranks of a worker's run, in answer to a question in a heartbeat's
    answer.

    ``moved_s_ago``: since the last output or collective, None if unknown. ``world_size`` is that of the
    ranks' environment, 0 if none was found.
    """

    number: Number
    question: Question
    ranks: Annotated[tuple[RankSnapshot, ...], Field(max_length=MAX_WORKERS_PER_NODE)] = ()
    world_size: Annotated[int, Field(ge=0, lt=2**31)] = 0
    moved_s_ago: Annotated[float, Field(ge=0)] | None = None


class RanksReceived(WireMessage):
    """The answer to :class:`RanksSeen`; ``awaited`` is False if nobody waits for it any more."""

    awaited: bool


class InspectionSentences(Shape):
    """The lines of an :class:`Inspection` as codes and values, for programs and other languages."""

    finding: list[Sentence]
    lines: list[Sentence]


class Inspection(Shape):
    """What all ranks of a running group are doing.

    ``lines`` list the ranks, one line for all at the same place; ``finding`` says which rank blocks the
    others, and is empty while there is progress; ``sentences`` are their codes and values in the same order.
    ``stacks`` are those of all threads. Unless everything was requested, there are at most 20 lines, and
    stacks of the 64 ranks at the rarest places: ``more_places`` and ``more_ranks`` count the rest. ``silent``
    lists the workers whose agents did not answer.
    """

    group: str
    run: int
    ranks: int
    nodes: int
    moved_s_ago: float | None
    finding: list[str]
    lines: list[str]
    sentences: InspectionSentences
    stacks: list[str]
    more_places: int = 0
    more_ranks: int = 0
    silent: list[str]
