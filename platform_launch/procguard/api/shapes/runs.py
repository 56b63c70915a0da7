"""Rank tables, and the runs in a group's history."""

from __future__ import annotations

from datetime import datetime

from platform_launch.procguard.api.ranks import Place
from platform_launch.procguard.api.shapes import Problem, Shape
from platform_launch.procguard.api.shapes.groups import GroupFailure, GroupPhase, GroupSettings


class PlaceShape(Place):
    """One row of the rank table, and what its worker will be started with."""

    world_size: int
    environment: dict[str, str]


class RankPreview(Shape):
    """The rank table as it would be. With ``problems`` the group cannot start."""

    places: list[PlaceShape]
    idle: list[str]
    problems: list[Problem]
    notes: list[Problem]


class RunShape(Shape):
    """A run of a group, in its history. ``restart``: which automatic restart it is, 0 for a person's start.

    ``outcome``: finished, failed or stopped; None while it is under way. ``command`` is rank 0's.
    """

    group: str
    number: int
    generation: int
    requested_by: str
    requested_at: datetime
    restart: int
    started_at: datetime | None
    ended_at: datetime | None
    outcome: GroupPhase | None
    failure: GroupFailure | None
    command: list[str]
    world_size: int


class RunDetail(RunShape):
    """A run with the settings that it began with, and its rank table."""

    settings: GroupSettings
    places: tuple[Place, ...]
