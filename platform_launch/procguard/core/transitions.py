"""Transitions of a group: entering a phase, beginning a run, and users' requests. Pure."""

from __future__ import annotations

from datetime import datetime

from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings
from platform_launch.procguard.core.freeze import freeze
from platform_launch.procguard.core.group import Group, GroupEvent, GroupStep
from platform_launch.procguard.core.snapshot import Members
from platform_launch.sentences import sentence


def enter(group: Group, phase: GroupPhase, at: datetime, **changes: object) -> Group:
    """Return the group in another phase."""
    return group.but(phase=phase, phase_since=at, silent=(), **changes)


def begin(group: Group, members: Members, at: datetime, restarts_used: int) -> GroupStep:
    """Begin a new generation, whose rank table is frozen here. Raises CannotStartError."""
    run = freeze(_settings(group), group.workers, members, group.generation)
    fresh = enter(
        group,
        GroupPhase.PREPARING,
        at,
        generation=run.generation,
        run=run,
        run_number=group.run_number + 1,
        requested_by=group.then_by or group.requested_by,
        then_by="",
        requested_at=at,
        restarts_used=restarts_used,
        then=None,
        failure=None,
        previous_failure=(group.failure or group.previous_failure) if restarts_used else None,
        failed_at=None,
        started_at=None,
        ended_at=None,
        queued_at=None,
    )
    return GroupStep(fresh, (GroupEvent("preparing", sentence("run", run=fresh.run_number)),))


def _settings(group: Group) -> GroupSettings:
    """Return the settings of the next run. The nodes of a queued group are known only now."""
    nodes = [worker.node for worker in group.workers]
    if not group.borrowed or group.settings.master_addr in nodes:
        return group.settings
    return group.settings.but(master_addr=nodes[0], world_size=None)


def queue(group: Group, at: datetime) -> GroupStep:
    """Put a group into the queue; no change if it is active."""
    if group.active or group.phase is GroupPhase.QUEUED:
        return GroupStep(group)
    queued = enter(group, GroupPhase.QUEUED, at, queued_at=at, failure=None, previous_failure=None)
    count = group.settings.queue_workers or 0
    return GroupStep(queued, (GroupEvent("queued", sentence("queued", count=count)),))


def start(group: Group, members: Members, at: datetime) -> GroupStep:
    """Start a group; no change if it is active. Raises CannotStartError."""
    if not group.active:
        return _as_requested(begin(group, members, at, 0), "start")
    return _again(group, members, "start") if group.phase is GroupPhase.STOPPING else GroupStep(group)


def restart(group: Group, members: Members, at: datetime) -> GroupStep:
    """Stop a group and start it again; one at rest is started. Raises CannotStartError."""
    if not group.active:
        return _as_requested(begin(group, members, at, 0), "restart")
    if group.phase is GroupPhase.STOPPING:
        return _again(group, members, "restart")
    freeze(_settings(group), group.workers, members, group.generation)  # refuse before anything is stopped
    stopping = enter(group, GroupPhase.STOPPING, at, then=GroupPhase.PREPARING)
    return GroupStep(stopping, (GroupEvent("restart"),))


def stop(group: Group, at: datetime) -> GroupStep:
    """Stop a group and keep it stopped; no change at rest, or if it is stopping after a failure."""
    if group.phase is GroupPhase.QUEUED:
        return GroupStep(enter(group, GroupPhase.IDLE, at, queued_at=None), (GroupEvent("unqueued"),))
    if group.phase is GroupPhase.STOPPING:
        if group.then in (GroupPhase.STOPPED, GroupPhase.FAILED):
            return GroupStep(group)
        return GroupStep(group.but(then=GroupPhase.STOPPED), (GroupEvent("stop"),))
    if not group.active:
        return GroupStep(group)
    return GroupStep(enter(group, GroupPhase.STOPPING, at, then=GroupPhase.STOPPED), (GroupEvent("stop"),))


def _again(group: Group, members: Members, action: str) -> GroupStep:
    if group.then is GroupPhase.PREPARING:
        return GroupStep(group)
    freeze(_settings(group), group.workers, members, group.generation)
    event = GroupEvent(action, sentence("when-stopped"))
    return GroupStep(group.but(then=GroupPhase.PREPARING), (event,))


def _as_requested(step: GroupStep, action: str) -> GroupStep:
    """Record that a user requested this, instead of the server's own event."""
    return GroupStep(step.group, (GroupEvent(action, sentence("run", run=step.group.run_number)),))
