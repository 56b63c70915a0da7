"""What the ranks of a running group do now: an agent's look at one worker, and what people see of all."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from platform_launch.observe.snapshot import RankSnapshot
from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.api.wire import MAX_WORKERS_PER_NODE, Number, Question, WireMessage
from platform_launch.sentences import Sentence


class RanksSeen(WireMessage):
    """What an agent sees of a worker's run: the answer to the question that an answer to a heartbeat held.

    ``moved_s_ago``: since the last output or the last collective, None where neither is known. ``world_size``
    is what the ranks were told, 0 where none was found.
    """

    number: Number
    question: Question
    ranks: Annotated[tuple[RankSnapshot, ...], Field(max_length=MAX_WORKERS_PER_NODE)] = ()
    world_size: Annotated[int, Field(ge=0, lt=2**31)] = 0
    moved_s_ago: Annotated[float, Field(ge=0)] | None = None


class RanksTaken(WireMessage):
    """The answer to that; not ``awaited``: nobody waits for it any more."""

    awaited: bool


class InspectionSentences(Shape):
    """What the lines of an :class:`Inspection` are made of, for programs and other languages."""

    finding: list[Sentence]
    lines: list[Sentence]


class Inspection(Shape):
    """What all ranks of a running group do now.

    ``lines`` hold the ranks, those at the same place in one line; ``finding`` says who keeps the others
    waiting, and is empty while something moves; ``sentences`` are the codes and values that their words are
    made of, in the same order. ``stacks`` are those of all threads. Unless the whole was
    asked for, there are 20 lines at most and stacks of the 64 ranks at the rarest places: ``more_places`` and
    ``more_ranks`` count the rest. ``silent`` lists the workers whose agents did not answer.
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
