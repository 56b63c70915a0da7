"""What becomes of a group when a person asks it to start, stop or restart. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from platform_launch.procguard.advance import begin, enter
from platform_launch.procguard.freeze import Members, freeze
from platform_launch.procguard.group import Group, Happened, Step
from platform_launch.procguard.shapes import Phase


def start(group: Group, members: Members, at: datetime) -> Step:
    """Start a group; one that is under way stays as it is. Raises CannotStartError."""
    if not group.active:
        return _asked(begin(group, members, at, 0), "start")
    return _again(group, members, "start") if group.phase is Phase.STOPPING else Step(group)


def restart(group: Group, members: Members, at: datetime) -> Step:
    """Stop a group and start it again; one at rest is started. Raises CannotStartError."""
    if not group.active:
        return _asked(begin(group, members, at, 0), "restart")
    if group.phase is Phase.STOPPING:
        return _again(group, members, "restart")
    freeze(
        group.settings, group.workers, members, group.generation
    )  # whatever speaks against it, before the stop
    stopping = enter(group, Phase.STOPPING, at, then=Phase.PREPARING)
    return Step(stopping, (Happened("restart"),))


def stop(group: Group, at: datetime) -> Step:
    """Stop a group and keep it stopped; one that is at rest, or has failed and stops for that, stays so."""
    if group.phase is Phase.STOPPING:
        if group.then in (Phase.STOPPED, Phase.FAILED):
            return Step(group)
        return Step(replace(group, then=Phase.STOPPED), (Happened("stop"),))
    if not group.active:
        return Step(group)
    return Step(enter(group, Phase.STOPPING, at, then=Phase.STOPPED), (Happened("stop"),))


def _again(group: Group, members: Members, action: str) -> Step:
    if group.then is Phase.PREPARING:
        return Step(group)
    freeze(group.settings, group.workers, members, group.generation)
    return Step(replace(group, then=Phase.PREPARING), (Happened(action, "when it has stopped"),))


def _asked(step: Step, action: str) -> Step:
    """Say in the audit log that a person asked for this, instead of what the server would say."""
    return Step(step.group, (Happened(action, f"run {step.group.generation}"),))
