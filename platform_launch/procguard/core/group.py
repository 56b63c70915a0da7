"""A group as a frozen value: its settings, its run and its phase; and the history of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated

from pydantic import Field

from platform_launch.procguard.api.ranks import Place, RankTable, WorkerName
from platform_launch.procguard.api.refused import problem_phrases
from platform_launch.procguard.api.shapes import Problem, Shape
from platform_launch.procguard.api.shapes.groups import GroupDocument, GroupPhase, GroupSettings, RunDetail
from platform_launch.sentences import Sentence, as_value

ACTIVE = frozenset({GroupPhase.PREPARING, GroupPhase.RUNNING, GroupPhase.STOPPING, GroupPhase.BACKING_OFF})
"""The phases in which a group's members cannot change."""

LONGEST_BACKOFF_S = 300.0


class GroupRun(Shape):
    """One generation: its rank table, settings and commands as they were at its start.

    ``commands`` are by node: the group's own, or each agent's default.
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
    """A group as it is stored, one JSON document. ``workers`` and ``settings`` are for the next run.

    ``then`` is the phase that follows while it stops; PREPARING there means "start again when stopped", as
    asked for by ``then_by``. ``borrowed``: its workers came from the queue and leave after the run.
    ``hold_noted``: the coming end of its hold was reported.

    Three fields are not stored: ``workers``, its members in order, which have their own rows; ``failed_at``,
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
        """Whether it runs, or waits to be started again."""
        return self.phase in ACTIVE

    @property
    def backoff_s(self) -> float:
        """Delay before the next restart: doubled each time, up to five minutes."""
        settings = self.run.settings if self.run else self.settings
        return min(LONGEST_BACKOFF_S, settings.backoff_s * 2.0 ** min(self.restarts_used, 16))


@dataclass(frozen=True)
class GroupEvent:
    """An entry for the audit log about a group."""

    action: str
    detail: Sentence | None = None


@dataclass(frozen=True)
class GroupStep:
    """A group after a step, and the events to record."""

    group: Group
    events: tuple[GroupEvent, ...] = ()


class CannotStartError(Exception):
    """The group has no rank table; see ``problems``."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = problems

    @property
    def sentences(self) -> list[str | Sentence]:
        """Return the problems as sentences."""
        found = (as_value(problem_phrases(one.code, one.values)[0]) for one in self.problems)
        return [one for one in found if isinstance(one, str | Sentence)]


_OUTCOMES = {
    GroupPhase.FINISHED: GroupPhase.FINISHED,
    GroupPhase.FAILED: GroupPhase.FAILED,
    GroupPhase.STOPPED: GroupPhase.STOPPED,
    GroupPhase.BACKING_OFF: GroupPhase.FAILED,
}


def run_of(group: Group, at: datetime) -> RunDetail | None:
    """Return a group's newest run; ``at`` is when the group reached its state."""
    run = group.run
    if run is None or group.requested_at is None:
        return None
    outcome = _OUTCOMES.get(group.phase)
    return RunDetail(
        group=group.name,
        number=group.run_number,
        generation=run.generation,
        requested_by=group.requested_by,
        requested_at=group.requested_at,
        restart=group.restarts_used,
        started_at=group.started_at,
        ended_at=(group.ended_at or at) if outcome else None,
        outcome=outcome,
        failure=group.failure,
        command=list(run.commands[run.places[0].worker.node]),
        world_size=len(run.places),
        settings=run.settings,
        places=run.places,
    )


def runs_to_write(before: Group, after: Group, at: datetime) -> list[RunDetail]:
    """Return the runs to write after a change of a group: the one that it left, and the current one."""
    found = []
    left = run_of(before, at)
    if left is not None and before.run_number != after.run_number and left.outcome is None:
        found.append(left.but(outcome=GroupPhase.STOPPED, ended_at=at))  # a user restarted it
    now = run_of(after, at)
    return found if now is None else [*found, now]
