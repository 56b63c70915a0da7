"""Decides the desired state of every worker, from users' changes and agents' reports.

Reports are kept in memory, users' changes in the database. Heartbeats only use memory. Every change (by
users, joining nodes or the control loop) takes one lock, and is written to the database before memory is
updated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import RequestRefused, Superseded, Unavailable
from platform_launch.procguard.api.shapes.groups import (
    Changed,
    GroupPhase,
    GroupSettings,
    GroupShape,
    NewGroup,
)
from platform_launch.procguard.api.shapes.workers import NodeShape
from platform_launch.procguard.api.wire import Heartbeat, JoinAnswer, JoinRequest, WorkerOrders
from platform_launch.procguard.control.joining import Joining, SilenceWatch, credential_hash
from platform_launch.procguard.control.orders import Orders
from platform_launch.procguard.control.queries import LogSize, Queries
from platform_launch.procguard.core import phases
from platform_launch.procguard.core.failures import failure_of
from platform_launch.procguard.core.failures import whose as failure_sentence
from platform_launch.procguard.core.group import CannotStartError, Group, GroupEvent, GroupStep, runs_to_write
from platform_launch.procguard.core.queue import allot, in_queue, is_free
from platform_launch.procguard.core.registry import DEFAULT_SILENT_AFTER_S, Members, Registry, ServerClock
from platform_launch.procguard.core.world import World
from platform_launch.procguard.database.store import DatabaseStore, Ledger
from platform_launch.sentences import Sentence, Value, listed, quoted, sentence

SERVER = "server"
"""The user of changes that no user made, in the audit log."""

_CHECK_EVERY_S = 5.0
"""Interval for checking that the database still belongs to this server."""

_NOTICE_S = 3600.0
"""The owner is notified this long before a hold ends."""

_PAUSE_S = 5.0
"""If the control loop slept this long, the whole process did: it received nothing, and nobody was silent."""


class Control:
    """Groups, workers and their desired state; ``queries`` is the read-only part.

    ``log_size`` returns how many bytes of a worker's log of a generation the server has. Thread-safe. ``who``
    and ``heartbeat`` only use memory; all other methods take the writers' lock, and raise Unavailable if the
    database cannot be written.
    """

    def __init__(
        self,
        store: DatabaseStore,
        *,
        log_size: LogSize,
        heartbeat_s: float,
        nodes_limit: int = 1024,
        clock: ServerClock | None = None,
    ) -> None:
        self._ledger = Ledger(store)
        self._registry = Registry.of(self._ledger.nodes, self._ledger.world.workers)
        self._clock = clock or ServerClock()
        self.queries = Queries(self._ledger, self._registry, self._clock, log_size)
        self._joining = Joining(self._ledger, self._registry, self._clock, nodes_limit)
        self._orders = Orders(self._ledger, log_size, heartbeat_s)
        self._silence = SilenceWatch(self._registry)
        self._heartbeat_s = heartbeat_s
        self._ticked_at = self._checked_at = self._shown_at = self._clock.listening_since
        self._has_new_heartbeats = False
        self._superseded = False

    # For agents

    def join(self, join: JoinRequest) -> JoinAnswer:
        """Add a node. Raises RequestRefused if another living agent has its name."""
        with self._ledger.writing:
            credential = self._joining.join(join)
        self.queries.changed()
        return JoinAnswer(credential=credential, heartbeat_s=self._heartbeat_s)

    def knows(self, node: str) -> bool:
        """Return whether a node of this name has joined."""
        return node in self._registry.nodes

    def who(self, credential: str) -> str | None:
        """Return the node whose agent has this credential, None if there is none."""
        return self._registry.by_credential.get(credential_hash(credential))

    def heartbeat(self, node: str, beat: Heartbeat) -> WorkerOrders:
        """Store the reports of a node's workers and return their orders. Uses memory only.

        Raises RequestRefused if the credential is an earlier installation's, Unavailable if another server
        has taken over the database.
        """
        if self._superseded:
            raise Unavailable("database-taken")
        entry = self._registry.nodes.get(node)
        if entry is None or beat.node != node or beat.instance != entry.node.join.instance:
            raise RequestRefused("not-this-agent", node=beat.node)
        orders, visible = self._orders.answer(entry, beat, self._clock.clock_s())
        self._has_new_heartbeats = True
        if visible:
            self.queries.changed()
        return orders

    # The control loop

    def tick(self) -> None:
        """Advance every group that needs it.

        Raises Unavailable if that cannot be written: call again. Raises Superseded if another server has
        taken over the database: this one gives agents no more orders and should stop.
        """
        with self._ledger.writing:
            clock_s = self._clock.clock_s()
            if clock_s - self._ticked_at > _PAUSE_S:
                self._clock.listening_since = clock_s
            try:
                self._check(clock_s)
                self._advance_all(clock_s)
                self._end_holds()
                self._serve_queue()
            except Superseded:
                self._superseded = True
                raise
            finally:
                self._ticked_at = self._clock.clock_s()
        self._count_heartbeats(clock_s)

    def _check(self, clock_s: float) -> None:
        """Check that this process is still the server: otherwise it must not give orders to agents."""
        if clock_s - self._checked_at >= _CHECK_EVERY_S:
            self._ledger.store.check()
            self._checked_at = clock_s

    def _advance_all(self, clock_s: float) -> None:
        trouble: Exception | None = None
        for group in list(self._ledger.world.groups.values()):
            workers = _relevant_workers(group)
            if not workers:
                continue
            try:
                self._clock.enter(group)
                moment = phases.StepTime(clock_s, self._clock.in_phase_s(group), self._clock.now())
                step = phases.next_step(group, self.queries.members(workers), moment)
                if step.group is not group or step.events:
                    self._write(group, step, SERVER)
            except Unavailable:
                raise
            except Exception as error:  # one group's trouble must not affect another; raised below
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    def _serve_queue(self) -> None:
        """Start the queued groups for which there are enough free workers."""
        world = self._ledger.world
        queued = in_queue(world.groups.values())
        if not queued:
            return
        members = self.queries.members(row.worker for row in world.workers.values() if row.group is None)
        free = {worker: one for worker, one in members.items() if is_free(one, DEFAULT_SILENT_AFTER_S)}
        for name, workers in allot(queued, free).items():
            world = self._ledger.world
            moved = world.moved([world.workers[worker] for worker in workers], name)
            group = moved.group(name).but(borrowed=True)
            try:
                step = phases.begin(group, members, self._clock.now(), 0)
            except CannotStartError as error:
                failure = failure_of(sentence("cannot-start", reason=error.sentences), None)
                ended = phases.enter(
                    group, GroupPhase.FAILED, self._clock.now(), failure=failure, queued_at=None
                )
                step = GroupStep(ended, (GroupEvent("failed", failure_sentence(failure)),))
            self._write(world.group(name), step, SERVER, moved, workers)

    def _end_holds(self) -> None:
        """Release workers whose hold has ended, or that came from the queue for a run that has ended."""
        now = self._clock.now()
        for group in list(self._ledger.world.groups.values()):
            until = group.settings.hold_until
            over = until is not None and until <= now
            if over and group.active:
                if group.phase is not GroupPhase.STOPPING:
                    self._write(group, phases.stop(group, now), SERVER)
            elif over or (group.borrowed and group.workers and not group.active and until is None):
                step = GroupStep(
                    group.but(
                        workers=(),
                        borrowed=False,
                        hold_noted=False,
                        settings=group.settings.but(hold_until=None),
                    ),
                    (GroupEvent("released-workers", sentence("workers", workers=listed(_texts(group)))),),
                )
                world = self._ledger.world
                moved = world.moved([world.workers[worker] for worker in group.workers], None)
                self._write(group, step, SERVER, moved, group.workers)
            elif until and not group.hold_noted and (until - now).total_seconds() < _NOTICE_S:
                at = f"{until:%Y-%m-%d %H:%M} UTC"
                event = GroupEvent("hold-ends", sentence("hold-ends", at=at))
                self._write(group, GroupStep(group.but(hold_noted=True), (event,)), SERVER)

    def _count_heartbeats(self, clock_s: float) -> None:
        """Make new and overdue heartbeats visible, at most once a second."""
        if clock_s - self._shown_at < 1.0:
            return
        moment = self._clock.moment()
        changed = self._silence.workers_changed(self._ledger.world, moment)
        with suppress(Unavailable):
            for action, on, detail in self._silence.news(moment):
                self.record(SERVER, action, on, detail)
        if self._has_new_heartbeats or changed:
            self._has_new_heartbeats, self._shown_at = False, clock_s
            self.queries.changed()

    # For users

    def create_group(self, new: NewGroup, who: str, owners: Sequence[str] = ()) -> GroupShape:
        """Create a group, with these owners unless its settings name some. Raises RequestRefused for a taken
        name.
        """
        with self._ledger.writing:
            world = self._ledger.world
            if new.name in world.groups:
                raise RequestRefused("group-exists", group=new.name)
            settings = world.group(new.like).settings if new.like else new.settings
            if new.like or not settings.owners:
                settings = settings.but(owners=list(owners))
            group = Group(
                name=new.name, settings=settings, phase=GroupPhase.IDLE, phase_since=self._clock.now()
            )
            with self._ledger.change(world.with_group(group)) as change:
                change.write_group(group)
                like = sentence("like", group=new.like) if new.like else None
                change.event(self._clock.now(), who, "create", group.name, like)
            self.queries.changed()
            return self.queries.group(new.name)

    def delete_group(self, name: str, who: str) -> None:
        """Delete a group that is not active; its workers stay, in no group."""
        with self._ledger.writing:
            group = self._resting(name)
            world = self._ledger.world.without_group(name)
            with self._ledger.change(world) as change:
                change.write_workers(world.workers[worker] for worker in group.workers)
                change.delete_group(name)
                change.event(self._clock.now(), who, "delete", name)
            self._clock.forget(name)
        self.queries.changed()

    def change_settings(self, name: str, settings: GroupSettings, who: str) -> GroupShape:
        """Change the settings of the next run; a running one keeps those it began with."""
        with self._ledger.writing:
            group = self._ledger.world.group(name)
            changes = _changes(group.settings, settings)
            if changes:
                event = GroupEvent("settings", sentence("changes", changes=changes))
                self._write(group, GroupStep(group.but(settings=settings, hold_noted=False), (event,)), who)
        return self.queries.group(name)

    def move(self, workers: Sequence[str], group: str | None, who: str) -> None:
        """Move workers to a group, or out of theirs. Raises RequestRefused if one is in a run."""
        with self._ledger.writing:
            world = self._ledger.world
            rows = [world.row(worker) for worker in workers]
            for name in (group, *sorted({row.group for row in rows if row.group and row.group != group})):
                if name is not None:
                    self._resting(name)
            moved = [row for row in rows if row.group != group]
            if not moved:
                return
            after = world.moved(moved, group)
            with self._ledger.change(after) as change:
                change.write_workers(after.workers[row.worker] for row in moved)
                names = listed([str(row.worker) for row in moved])
                moved_to = sentence("workers" if group else "workers-taken-out", workers=names)
                change.event(self._clock.now(), who, "move", group or "no group", moved_to)
        self.queries.changed()

    def start(self, name: str, who: str) -> Changed:
        """Start a group; no change if it is active. Raises RequestRefused with ``problems``."""
        return self._request(name, who, phases.start)

    def queue(self, name: str, who: str) -> Changed:
        """Start a group when enough workers are free. Raises RequestRefused if it does not set how many it
        needs.
        """
        with self._ledger.writing:
            group = self._ledger.world.group(name)
            if group.settings.queue_workers is None:
                raise RequestRefused("no-queue-workers", group=name)
            if group.workers and not group.active:
                raise RequestRefused("queue-has-workers", group=name)
            return self._request(name, who, lambda group, _, at: phases.queue(group, at))

    def stop(self, name: str, who: str) -> Changed:
        """Stop a group."""
        return self._request(name, who, lambda group, _, at: phases.stop(group, at))

    def restart(self, name: str, who: str) -> Changed:
        """Stop a group and start it again. Raises RequestRefused with ``problems``; nothing is stopped
        then.
        """
        return self._request(name, who, phases.restart)

    def drain(self, node: str, drained: bool, who: str) -> NodeShape:
        """Keep new runs off a node, or end that; what runs there continues. Raises NotFound."""
        with self._ledger.writing:
            entry = self._registry.node(node)
            if bool(entry.node.drained_by) != drained:
                changed = entry.node.but(drained_by=who if drained else "")
                with self._ledger.change(self._ledger.world) as change:
                    change.write_node(changed)
                    change.event(self._clock.now(), who, "drain" if drained else "undrain", node)
                entry.node = changed
        self.queries.changed()
        return self.queries.node(node)

    def release(self, node: str, who: str) -> NodeShape:
        """Ask a node's agent to end its quarantine. Raises NotFound, or RequestRefused if it is in none."""
        with self._ledger.writing:
            entry = self._registry.node(node)
            held = entry.quarantine
            if held is None:
                raise RequestRefused("not-in-quarantine", node=node)
            if entry.release != held.since:
                with self._ledger.change(self._ledger.world) as change:
                    change.event(self._clock.now(), who, "release", node, quoted(held.reason))
                entry.release = held.since
        self.queries.changed()
        return self.queries.node(node)

    def forget(self, node: str, who: str) -> None:
        """Remove a node that is gone."""
        with self._ledger.writing:
            self._joining.forget(node, who)
        self.queries.changed()

    def record(
        self,
        who: str,
        action: str,
        object: str,  # noqa: A002 - an event's field
        detail: Sentence,
    ) -> None:
        """Add an entry to the audit log."""
        with self._ledger.writing, self._ledger.change(self._ledger.world) as change:
            change.event(self._clock.now(), who, action, object, detail)
        self.queries.changed()

    def _resting(self, name: str) -> Group:
        group = self._ledger.world.group(name)
        if group.active or group.phase is GroupPhase.QUEUED:
            raise RequestRefused("group-active", group=name)
        return group

    def _request(
        self, name: str, who: str, transition: Callable[[Group, Members, datetime], GroupStep]
    ) -> Changed:
        with self._ledger.writing:
            group = self._ledger.world.group(name)
            try:
                step = transition(group, self.queries.members(group.workers), self._clock.now())
            except CannotStartError as error:
                raise RequestRefused(
                    "cannot-start", problems=error.problems, group=name, reasons=str(error)
                ) from error
            changed = step.group is not group
            if changed:
                if step.group.run_number > group.run_number or step.group.phase is GroupPhase.QUEUED:
                    step = replace(step, group=step.group.but(requested_by=who))
                elif step.group.then is GroupPhase.PREPARING:
                    step = replace(step, group=step.group.but(then_by=who))
                self._write(group, step, who)
            return Changed(group=self.queries.group(name), changed=changed)

    def _write(
        self,
        before: Group,
        step: GroupStep,
        who: str,
        world: World | None = None,
        moved: Iterable[WorkerName] = (),
    ) -> None:
        """Write a group's step. In ``world``, the workers in ``moved`` have another group."""
        at = self._clock.now()
        after = (world or self._ledger.world).with_group(step.group)
        with self._ledger.change(after) as change:
            change.write_group(step.group)
            change.write_workers(after.workers[worker] for worker in moved)
            for run in runs_to_write(before, step.group, at):
                change.write_run(run)
            for event in step.events:
                change.event(at, who, event.action, before.name, event.detail)
        self.queries.changed()


def _texts(group: Group) -> list[str]:
    return [str(worker) for worker in group.workers]


def _relevant_workers(group: Group) -> Sequence[WorkerName]:
    """Return the workers whose reports may change a group: at rest, only one with a pending verdict."""
    if group.active:
        return group.workers
    failure = group.failure
    return [WorkerName.parse(failure.worker)] if failure and failure.worker and not failure.verdict else ()


def _changes(before: GroupSettings, after: GroupSettings) -> list[str | Sentence]:
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return [
        sentence("change", setting=key, before=_written(old[key]), after=_written(new[key]))
        for key in new
        if old[key] != new[key]
    ]


def _written(value: object) -> Value:
    return sentence("unset") if value in (None, "", [], {}) else json.dumps(value, ensure_ascii=False)
