"""A group as a frozen value: what people set, which run it is in and how far that has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field

from platform_launch.procguard.api.ranks import Place, RankTable, WorkerName
from platform_launch.procguard.api.shapes import Problem, Shape
from platform_launch.procguard.api.shapes.groups import GroupDocument, GroupPhase, GroupSettings
from platform_launch.sentences import Sentence

ACTIVE = frozenset({GroupPhase.PREPARING, GroupPhase.RUNNING, GroupPhase.STOPPING, GroupPhase.BACKING_OFF})
"""The phases in which a group's members cannot change."""

LONGEST_BACKOFF_S = 300.0


class GroupRun(Shape):
    """One generation: its rank table, settings and commands as they were when it began.

    ``commands`` are by node: the group's own, or what each agent runs for a group that names none.
    """

    generation: int
    settings: GroupSettings
    table: RankTable
    commands: dict[str, tuple[str, ...]]

    @property
    def places(self) -> tuple[Place, ...]:
        """Return the places by rank."""
        return self.table.places

    @cached_property
    def place_of(self) -> Mapping[WorkerName, Place]:
        """Return the places by worker."""
        return {place.worker: place for place in self.places}


class Group(GroupDocument):
    """A group, as it is stored: one JSON document. ``workers`` and ``settings`` are for the next run.

    ``then`` is, while it stops, the phase that follows; PREPARING there means "start again when stopped", and
    ``then_by`` asked for that. ``borrowed``: its workers came from the queue and leave after the run.
    ``hold_noted``: that its hold ends soon was reported.
    Three fields are not stored: ``workers``, its members in order, known by their own rows; ``failed_at``,
    when the failing worker ended on the server's monotonic clock; and ``silent``, the workers whose heartbeat
    is overdue while it runs.
    """

    workers: Annotated[tuple[WorkerName, ...], Field(exclude=True)] = ()
    run: GroupRun | None = None
    borrowed: bool = False
    hold_noted: bool = False
    then: GroupPhase | None = None
    then_by: str = ""
    failed_at: Annotated[float | None, Field(exclude=True)] = None
    silent: Annotated[tuple[WorkerName, ...], Field(exclude=True)] = ()

    @property
    def active(self) -> bool:
        """Whether a run is under way, or waits to be started again."""
        return self.phase in ACTIVE

    @property
    def backoff_s(self) -> float:
        """How long to wait before the next restart: doubled each time, five minutes at most."""
        settings = self.run.settings if self.run else self.settings
        return min(LONGEST_BACKOFF_S, settings.backoff_s * 2.0 ** min(self.restarts_used, 16))


@dataclass(frozen=True)
class GroupEvent:
    """Something to write into the audit log about a group."""

    action: str
    detail: Sentence | None = None


@dataclass(frozen=True)
class GroupStep:
    """What became of a group, and what to tell of it."""

    group: Group
    events: tuple[GroupEvent, ...] = ()


class CannotStartError(Exception):
    """The group has no rank table: ``problems`` say why."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = problems

    @property
    def sentences(self) -> list[str | Sentence]:
        """Return what speaks against a start, a sentence each."""
        return [
            Sentence(code=f"problem.{one.code}", values=dict(one.values), text=one.text)
            for one in self.problems
        ]
