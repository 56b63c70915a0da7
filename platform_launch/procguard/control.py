"""The one who decides: what agents report is held in memory, what people change in the database.

Heartbeats read and write memory only. Whoever changes something (people, joining nodes, the clerk) holds one
lock, writes it down first and takes it over after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from platform_launch.errors import shown_list
from platform_launch.procguard import asked, views
from platform_launch.procguard.advance import Moment, advance
from platform_launch.procguard.answering import Answering
from platform_launch.procguard.freeze import Members
from platform_launch.procguard.group import CannotStartError, Group, Happened, Step
from platform_launch.procguard.ledger import Store
from platform_launch.procguard.live import LiveWorker
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.refused import Refused, Superseded, Unavailable
from platform_launch.procguard.shapes import Changed, GroupSettings, GroupShape, NewGroup, Phase

SERVER = "server"
"""Who did what nobody asked for, in the audit log."""

_CHECK_EVERY_S = 5.0
"""How often to ask whether the database is still ours."""

_PAUSE_S = 5.0
"""When the clerk was away for so long, the whole process was: it heard nobody, and nobody was silent."""


def utc_now() -> datetime:
    """Return the time to show."""
    return datetime.now(timezone.utc)


class Control(Answering):
    """Groups, workers and what is wanted of them.

    ``log_size`` tells how many bytes of a worker's log of a generation the server has; ``clock`` is monotonic
    and decides everything, ``now`` is only shown. Every method may be called from any thread. ``who``,
    ``heartbeat`` and those that only look use memory; all others take the writers' lock. They raise
    Unavailable when the database cannot be written.
    """

    def __init__(
        self,
        store: Store,
        *,
        log_size: views.LogSize,
        heartbeat_s: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__(store, log_size, heartbeat_s, clock, now)
        self._ticked_at = self._checked_at = self._shown_at = self._listening_since
        self._entered: dict[str, tuple[Phase, datetime, float]] = {}
        self._silent: frozenset[WorkerName] = frozenset()

    # The clerk

    def tick(self) -> None:
        """Advance every group that needs it.

        Raises Unavailable when that cannot be written: call again. Raises Superseded when another server has
        taken the database over: this one tells agents nothing any more, and should be ended.
        """
        with self._ledger.writing:
            clock_s = self._clock()
            if clock_s - self._ticked_at > _PAUSE_S:
                self._listening_since = clock_s
            try:
                self._check(clock_s)
                self._advance_all(clock_s)
            except Superseded as error:
                self._superseded = str(error)
                raise
            finally:
                self._ticked_at = self._clock()
        self._count_heartbeats(clock_s)

    # Groups

    def create_group(self, new: NewGroup, who: str) -> GroupShape:
        """Create a group. Raises Refused where the name is taken."""
        with self._ledger.writing:
            world = self._ledger.world
            if new.name in world.groups:
                raise Refused(f"there is a group {new.name} already", "choose another name")
            group = Group(new.name, new.settings, Phase.IDLE, self._now())
            with self._ledger.change(world.with_group(group)) as change:
                change.put_group(group)
                change.event(self._now(), who, "create", group.name, "")
            self._changed()
            return self.group(new.name)

    def delete_group(self, name: str, who: str) -> None:
        """Delete a group that is at rest; its workers are in none then."""
        with self._ledger.writing:
            group = self._resting(name)
            world = self._ledger.world.without_group(name)
            with self._ledger.change(world) as change:
                change.put_workers(world.workers[worker] for worker in group.workers)
                change.delete_group(name)
                change.event(self._now(), who, "delete", name, "")
            self._entered.pop(name, None)
        self._changed()

    def change_settings(self, name: str, settings: GroupSettings, who: str) -> GroupShape:
        """Change what the next run will be; the one under way keeps what it began with."""
        with self._ledger.writing:
            group = self._group(name)
            detail = _differences(group.settings, settings)
            if detail:
                self._write(
                    group, Step(replace(group, settings=settings), (Happened("settings", detail),)), who
                )
        return self.group(name)

    def move(self, workers: Sequence[str], group: str | None, who: str) -> None:
        """Put workers into a group, or into none. Raises Refused while a concerned group is in a run."""
        with self._ledger.writing:
            world = self._ledger.world
            rows = [self._row(worker) for worker in workers]
            for name in (group, *sorted({row.group for row in rows if row.group and row.group != group})):
                if name is not None:
                    self._resting(name)
            moved = [row for row in rows if row.group != group]
            if not moved:
                return
            after = world.moved(moved, group)
            with self._ledger.change(after) as change:
                change.put_workers(after.workers[row.worker] for row in moved)
                names = shown_list([str(row.worker) for row in moved])
                change.event(self._now(), who, "move", group or "no group", names)
        self._changed()

    def start(self, name: str, who: str) -> Changed:
        """Start a group; one that is under way stays as it is. Raises Refused with ``problems``."""
        return self._ask(name, who, lambda group, members: asked.start(group, members, self._now()))

    def stop(self, name: str, who: str) -> Changed:
        """Stop a group."""
        return self._ask(name, who, lambda group, _: asked.stop(group, self._now()))

    def restart(self, name: str, who: str) -> Changed:
        """Stop a group and start it again. Raises Refused with ``problems``, and stops nothing then."""
        return self._ask(name, who, lambda group, members: asked.restart(group, members, self._now()))

    def forget(self, node: str, who: str) -> None:
        """Remove a node that is gone."""
        with self._ledger.writing:
            self._joining.forget(node, who, self._clock(), self._listening_since)
        self._changed()

    def record(self, who: str, action: str, object: str, detail: str) -> None:  # noqa: A002 - an event's word
        """Write an entry into the audit log."""
        with self._ledger.writing, self._ledger.change(self._ledger.world) as change:
            change.event(self._now(), who, action, object, detail)
        self._changed()

    # Within

    def _check(self, clock_s: float) -> None:
        """Ask whether this still is the server: one that is not must not tell agents what to do."""
        if clock_s - self._checked_at >= _CHECK_EVERY_S:
            self._ledger.store.check()
            self._checked_at = clock_s

    def _advance_all(self, clock_s: float) -> None:
        trouble: Exception | None = None
        for group in list(self._ledger.world.groups.values()):
            wanted = _whom_it_needs(group)
            if not wanted:
                continue
            try:
                moment = Moment(clock_s, clock_s - self._entered_at(group, clock_s), self._now())
                step = advance(group, self._members(wanted), moment)
                if step.group is not group or step.events:
                    self._write(group, step, SERVER)
            except Unavailable:
                raise
            except Exception as error:  # one group's trouble is not another's; raised below
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    def _entered_at(self, group: Group, clock_s: float) -> float:
        """Return when the group's phase began, or when this server first saw it."""
        known = self._entered.get(group.name)
        if known is None or known[:2] != (group.phase, group.phase_since):
            known = self._entered[group.name] = (group.phase, group.phase_since, clock_s)
        return known[2]

    def _ask(self, name: str, who: str, ask: Callable[[Group, Members], Step]) -> Changed:
        with self._ledger.writing:
            group = self._group(name)
            try:
                step = ask(group, self._members(group.workers))
            except CannotStartError as error:
                problems = [views.problem_shape(problem) for problem in error.problems]
                raise Refused(f"{name} cannot start: {error}", error.problems[0].hint, problems) from error
            changed = step.group is not group
            if changed:
                self._write(group, step, who)
            return Changed(group=self.group(name), changed=changed)

    def _write(self, before: Group, step: Step, who: str) -> None:
        at = self._now()
        with self._ledger.change(self._ledger.world.with_group(step.group)) as change:
            change.put_group(step.group)
            for event in step.events:
                change.event(at, who, event.action, before.name, event.detail)
        self._changed()

    def _count_heartbeats(self, clock_s: float) -> None:
        """Let heartbeats that came or are late be seen, at most once a second."""
        if clock_s - self._shown_at < 1.0:
            return
        silent = frozenset(worker.worker for worker in self._silent_workers(clock_s))
        if self._heard or silent != self._silent:
            self._silent, self._heard, self._shown_at = silent, False, clock_s
            self._changed()

    def _silent_workers(self, clock_s: float) -> list[LiveWorker]:
        world = self._ledger.world
        since = self._listening_since
        return [
            worker
            for _, worker in self._roster.all_workers()
            if clock_s - max(worker.seen_at or since, since)
            > views.silent_after_s(world.group_of(worker.worker))
        ]


def _whom_it_needs(group: Group) -> Sequence[WorkerName]:
    """Return the workers whose reports may change a group: at rest only the one whose verdict is to come."""
    if group.active:
        return group.workers
    failure = group.failure
    return [WorkerName.parse(failure.worker)] if failure and failure.worker and not failure.verdict else ()


def _differences(before: GroupSettings, after: GroupSettings) -> str:
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return "; ".join(f"{key}: {old[key]!r} → {new[key]!r}" for key in new if old[key] != new[key])
