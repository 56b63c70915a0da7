"""Decides what is wanted of every worker, from what people changed and what agents report.

Reports are held in memory, what people change in the database. Heartbeats read and write memory only.
Whoever changes something (people, joining nodes, the control loop) holds one lock, writes it down first and
takes it over after.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

from platform_launch.errors import shown, shown_list
from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import NotFound, RequestRefused, Superseded, Unavailable
from platform_launch.procguard.api.shapes import (
    AuditEvent,
    Changed,
    EventFilter,
    GroupPhase,
    GroupSettings,
    GroupShape,
    LogRun,
    NewGroup,
    NodeShape,
    RankPreview,
    RunDetail,
    RunShape,
    WorkerShape,
)
from platform_launch.procguard.api.wire import Heartbeat, JoinAnswer, JoinRequest, WorkerOrder, WorkerOrders
from platform_launch.procguard.core import queries, transitions
from platform_launch.procguard.core.freeze import Members, rank_table
from platform_launch.procguard.core.group import CannotStartError, Group, GroupEvent, GroupStep
from platform_launch.procguard.core.joining import Joining, credential_hash, registry_of
from platform_launch.procguard.core.ledger import GroupStore, Ledger, WorkerRow
from platform_launch.procguard.core.orders import order_for
from platform_launch.procguard.core.phases import StepTime, next_step
from platform_launch.procguard.core.queries import NodeGlance, WorkerGlance, natural
from platform_launch.procguard.core.registry import DEFAULT_SILENT_AFTER_S, WorkerEntry
from platform_launch.procguard.core.runs import records_of, run_detail, run_shape
from platform_launch.procguard.core.snapshot import WorkerSnapshot

SERVER = "server"
"""Who did what nobody asked for, in the audit log."""

_AGAIN = GroupPhase.PREPARING
"""What follows a stop when somebody has asked for a start."""

_EVERY_EVENT = EventFilter()

_CHECK_EVERY_S = 5.0
"""How often to ask whether the database is still ours."""

_PAUSE_S = 5.0
"""When the control loop slept for so long, the whole process did: it heard nobody, and nobody was silent."""


def utc_now() -> datetime:
    """Return the time to show."""
    return datetime.now(timezone.utc)


class Control:
    """Groups, workers and what is wanted of them.

    ``log_size`` tells how many bytes of a worker's log of a generation the server has; ``clock`` is monotonic
    and decides everything, ``now`` is only shown. Every method may be called from any thread. ``who``,
    ``heartbeat`` and those that only look use memory; all others take the writers' lock. They raise
    Unavailable when the database cannot be written.
    """

    def __init__(
        self,
        store: GroupStore,
        *,
        log_size: queries.LogSize,
        heartbeat_s: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._ledger = Ledger(store)
        self._registry = registry_of(self._ledger)
        self._joining = Joining(self._ledger, self._registry, now)
        self._log_size = log_size
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._now = now
        self._listening_since = clock()
        self._ticked_at = self._checked_at = self._shown_at = self._listening_since
        self._entered: dict[str, tuple[GroupPhase, datetime, float]] = {}
        self._silent: frozenset[WorkerName] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._quarantined: frozenset[str] = frozenset()
        self._heard = False
        self._superseded = ""
        self._version = 0
        self._counting = threading.Lock()

    # What agents ask

    def join(self, join: JoinRequest) -> JoinAnswer:
        """Take a node in. Raises RequestRefused where its name is another living agent's."""
        with self._ledger.writing:
            credential = self._joining.join(join, self._clock(), self._listening_since)
        self._changed()
        return JoinAnswer(credential=credential, heartbeat_s=self._heartbeat_s)

    def who(self, credential: str) -> str | None:
        """Return the node whose agent this is, None where it is nobody's."""
        return self._registry.by_credential.get(credential_hash(credential))

    def heartbeat(self, node: str, beat: Heartbeat) -> WorkerOrders:
        """Take in what a node's workers do and say what is wanted of them. Memory only.

        Raises RequestRefused where the credential is an earlier installation's, Unavailable where another
        server has taken the database over.
        """
        if self._superseded:
            raise Unavailable(self._superseded, "ask the server that has it")
        entry = self._registry.nodes.get(node)
        if entry is None or beat.node != node or beat.instance != entry.node.instance:
            raise RequestRefused(
                f"the agent of node {beat.node!r} is no longer known by this credential",
                "join again with the join token",
            )
        clock_s = self._clock()
        seen_at_once = entry.hear(beat, clock_s)
        orders: dict[int, WorkerOrder] = {}
        for report in beat.workers:
            worker = entry.workers.get(report.number)
            if worker is None:
                continue
            seen_at_once |= worker.take(report, clock_s)
            orders[report.number] = self._order(worker)
        self._heard = True
        if seen_at_once:
            self._changed()
        before = entry.orders
        if before is None or before.release != entry.release or not _unchanged(before.orders, orders):
            before = entry.orders = WorkerOrders(
                orders=orders, heartbeat_s=self._heartbeat_s, release=entry.release
            )
        return before

    def _order(self, worker: WorkerEntry) -> WorkerOrder:
        """Return what is wanted of a worker: the same object for as long as it is the same."""
        world = self._ledger.world
        row = world.workers.get(worker.worker)
        group = world.groups.get(row.group) if row and row.group else None
        known = max(worker.report.generation if worker.report else 0, row.generation if row else 0)
        basis = (group.run if group else None, group.phase if group else None, known)
        order = worker.order
        if order is None or worker.order_for is None or not _same(worker.order_for, basis):
            order = order_for(group, worker.worker, known)
            worker.order_for = basis
        size = self._log_size(worker.text, order.generation)
        if order.log_offset != size:
            order = order.model_copy(update={"log_offset": size})
        worker.order = order
        return order

    # What people see

    @property
    def version(self) -> int:
        """A number that increases with every visible change; by heartbeats alone at most once a second."""
        return self._version

    @property
    def node_count(self) -> int:
        """How many nodes have joined."""
        return len(self._registry.nodes)

    def groups(self) -> list[GroupShape]:
        """Return all groups by name."""
        return [self._shape(group) for _, group in sorted(self._ledger.world.groups.items())]

    def group(self, name: str) -> GroupShape:
        """Return a group. Raises NotFound."""
        return self._shape(self._group(name))

    def workers(self) -> list[WorkerShape]:
        """Return all workers by node and number."""
        world, clock_s = self._ledger.world, self._clock()
        return [
            queries.worker_shape(
                node, entry, world.group_of(entry.worker), self._member(entry.worker, clock_s)
            )
            for node, entry in self._registry.all_workers()
        ]

    def glances(self) -> tuple[list[NodeGlance], list[WorkerGlance]]:
        """Return all nodes by name and all workers by node and number, at a glance."""
        world, clock_s, since = self._ledger.world, self._clock(), self._listening_since
        limits: dict[str | None, float] = {None: DEFAULT_SILENT_AFTER_S}
        limits |= {name: queries.silent_after_s(group) for name, group in world.groups.items()}
        workers, rows, groups = [], world.workers, world.groups
        for node, entry in self._registry.all_workers():
            row = rows.get(entry.worker)
            group = groups.get(row.group) if row and row.group else None
            silent_s = clock_s - max(entry.seen_at or since, since)
            limit_s = limits[group.name if group else None]
            workers.append(queries.worker_glance(node, entry, group, silent_s, limit_s))
        nodes = [
            NodeGlance(
                name,
                entry.silent_s(clock_s, since) > DEFAULT_SILENT_AFTER_S,
                bool(entry.node.drained_by),
                entry.quarantine,
                entry.machine,
            )
            for name, entry in sorted(self._registry.nodes.items())
        ]
        return nodes, workers

    def worker(self, worker: str) -> WorkerShape:
        """Return a worker. Raises NotFound."""
        name = self._row(worker).worker
        node = self._registry.nodes.get(name.node)
        entry = node.workers.get(name.number) if node else None
        if node is None or entry is None:
            raise _no_worker(worker)  # it is being forgotten
        group = self._ledger.world.group_of(name)
        return queries.worker_shape(node, entry, group, self._member(name, self._clock()))

    def nodes(self, workers: Sequence[WorkerShape] | None = None) -> list[NodeShape]:
        """Return all nodes by name, each with what its workers do: those given, where they are known."""
        by_node: dict[str, list[WorkerShape]] = {}
        for worker in self.workers() if workers is None else workers:
            by_node.setdefault(worker.node, []).append(worker)
        clock_s, since = self._clock(), self._listening_since
        return [
            queries.node_shape(entry, by_node.get(name, []), clock_s, since)
            for name, entry in sorted(self._registry.nodes.items(), key=lambda item: natural(item[0]))
        ]

    def node(self, name: str) -> NodeShape:
        """Return a node. Raises NotFound."""
        entry = self._registry.nodes.get(name)
        if entry is None:
            raise NotFound(f"no node {shown(name)}", "look at the list of nodes")
        workers = [self.worker(str(worker.worker)) for _, worker in sorted(entry.workers.items())]
        return queries.node_shape(entry, workers, self._clock(), self._listening_since)

    def preview(
        self, name: str, settings: GroupSettings | None = None, workers: Sequence[str] | None = None
    ) -> RankPreview:
        """Return the rank table as it would be with other settings or workers. Raises NotFound."""
        group = self._group(name)
        chosen = group.workers if workers is None else tuple(self._row(worker).worker for worker in workers)
        wanted = settings or group.settings
        return queries.preview(rank_table(wanted, chosen, self._members(chosen)), wanted.backend)

    def runs(self, name: str, before: int | None = None, limit: int = 50) -> list[RunShape]:
        """Return the newest runs of a group, or those before one, newest first. Raises NotFound."""
        self._group(name)
        return [run_shape(record) for record in self._ledger.store.runs(name, before, limit)]

    def run(self, name: str, number: int) -> RunDetail:
        """Return a run of a group. Raises NotFound."""
        record = self._ledger.store.run(name, number)
        if record is None:
            raise NotFound(f"no run {number} of {shown(name)}", "look at the list of its runs")
        return run_detail(record)

    def run_names(self, worker: str, generations: Sequence[int]) -> list[LogRun]:
        """Return what a worker's generations were called in their groups, where that is known."""
        found = self._ledger.store.runs_of(worker, generations)
        return [LogRun(generation=one, group=group, number=number) for one, group, number in found]

    def events(
        self, before: int | None = None, limit: int = 100, chosen: EventFilter = _EVERY_EVENT
    ) -> list[AuditEvent]:
        """Return the newest entries of the audit log that are chosen, or those before one, newest first."""
        return self._ledger.store.events(before, limit, chosen)

    # The control loop

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

    # What people change

    def create_group(self, new: NewGroup, who: str) -> GroupShape:
        """Create a group. Raises RequestRefused where the name is taken."""
        with self._ledger.writing:
            world = self._ledger.world
            if new.name in world.groups:
                raise RequestRefused(f"there is a group {new.name} already", "choose another name")
            settings = self._group(new.like).settings if new.like else new.settings
            group = Group(new.name, settings, GroupPhase.IDLE, self._now())
            with self._ledger.change(world.with_group(group)) as change:
                change.put_group(group)
                change.event(self._now(), who, "create", group.name, f"like {new.like}" if new.like else "")
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
                    group,
                    GroupStep(replace(group, settings=settings), (GroupEvent("settings", detail),)),
                    who,
                )
        return self.group(name)

    def move(self, workers: Sequence[str], group: str | None, who: str) -> None:
        """Put workers into a group, or into none. Raises RequestRefused while one is in a run."""
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
        """Start a group; one that is under way stays as it is. Raises RequestRefused with ``problems``."""
        return self._ask(name, who, lambda group, members: transitions.start(group, members, self._now()))

    def stop(self, name: str, who: str) -> Changed:
        """Stop a group."""
        return self._ask(name, who, lambda group, _: transitions.stop(group, self._now()))

    def restart(self, name: str, who: str) -> Changed:
        """Stop a group and start it again. Raises RequestRefused with ``problems``, which stops nothing."""
        return self._ask(name, who, lambda group, members: transitions.restart(group, members, self._now()))

    def drain(self, node: str, drained: bool, who: str) -> NodeShape:
        """Let nothing new start on a node, or let it again; what runs goes on. Raises NotFound."""
        with self._ledger.writing:
            self.node(node)
            entry = self._registry.nodes[node]
            if bool(entry.node.drained_by) != drained:
                changed = replace(entry.node, drained_by=who if drained else "")
                with self._ledger.change(self._ledger.world) as change:
                    change.put_node(changed)
                    change.event(self._now(), who, "drain" if drained else "undrain", node, "")
                entry.node = changed
        self._changed()
        return self.node(node)

    def release(self, node: str, who: str) -> NodeShape:
        """Let a node's agent end its quarantine. Raises NotFound, RequestRefused where it is in none."""
        with self._ledger.writing:
            self.node(node)
            entry = self._registry.nodes[node]
            held = entry.quarantine
            if held is None:
                raise RequestRefused(f"{node} is not in quarantine", "nothing is to be done")
            if entry.release != held.since:
                with self._ledger.change(self._ledger.world) as change:
                    change.event(self._now(), who, "release", node, held.reason)
                entry.release = held.since
        self._changed()
        return self.node(node)

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

    def _changed(self) -> None:
        with self._counting:
            self._version += 1

    def _group(self, name: str) -> Group:
        group = self._ledger.world.groups.get(name)
        if group is None:
            raise NotFound(f"no group {shown(name)}", "look at the list of groups")
        return group

    def _resting(self, name: str) -> Group:
        group = self._group(name)
        if group.active:
            raise RequestRefused(f"{name} is {group.phase.value}", "stop it first")
        return group

    def _row(self, worker: str) -> WorkerRow:
        try:
            row = self._ledger.world.workers.get(WorkerName.parse(worker))
        except ValueError:
            row = None
        if row is None:
            raise _no_worker(worker)
        return row

    def _members(self, workers: Sequence[WorkerName]) -> Members:
        clock_s = self._clock()
        return {worker: self._member(worker, clock_s) for worker in workers}

    def _member(self, worker: WorkerName, clock_s: float) -> WorkerSnapshot:
        row = self._ledger.world.workers.get(worker)
        return self._registry.member(worker, row.generation if row else 0, clock_s, self._listening_since)

    def _shape(self, group: Group) -> GroupShape:
        known = self._entered.get(group.name)
        same = known is not None and known[:2] == (group.phase, group.phase_since)
        elapsed_s = self._clock() - known[2] if known and same else 0.0
        return queries.group_shape(group, self._members(group.workers), self._log_size, elapsed_s)

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
                moment = StepTime(clock_s, clock_s - self._entered_at(group, clock_s), self._now())
                step = next_step(group, self._members(wanted), moment)
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

    def _ask(self, name: str, who: str, ask: Callable[[Group, Members], GroupStep]) -> Changed:
        with self._ledger.writing:
            group = self._group(name)
            try:
                step = ask(group, self._members(group.workers))
            except CannotStartError as error:
                problems = [queries.problem_shape(problem) for problem in error.problems]
                raise RequestRefused(
                    f"{name} cannot start: {error}", error.problems[0].hint, problems
                ) from error
            changed = step.group is not group
            if changed and (step.group.run_number > group.run_number or step.group.then is _AGAIN):
                step = replace(step, group=replace(step.group, requested_by=who))
            if changed:
                self._write(group, step, who)
            return Changed(group=self.group(name), changed=changed)

    def _write(self, before: Group, step: GroupStep, who: str) -> None:
        at = self._now()
        with self._ledger.change(self._ledger.world.with_group(step.group)) as change:
            change.put_group(step.group)
            for record in records_of(before, step.group, at):
                change.put_run(record)
            for event in step.events:
                change.event(at, who, event.action, before.name, event.detail)
        self._changed()

    def _count_heartbeats(self, clock_s: float) -> None:
        """Let heartbeats that came or are late be seen, at most once a second."""
        if clock_s - self._shown_at < 1.0:
            return
        silent = frozenset(worker.worker for worker in self._silent_workers(clock_s))
        self._tell_of_nodes(clock_s)
        if self._heard or silent != self._silent:
            self._silent, self._heard, self._shown_at = silent, False, clock_s
            self._changed()

    def _tell_of_nodes(self, clock_s: float) -> None:
        """Write down which nodes fell silent or came into quarantine, and which are back from there.

        One entry for each, however many nodes they are.
        """
        since = self._listening_since
        known = list(self._registry.nodes.items())
        lost = frozenset(
            name for name, entry in known if entry.silent_s(clock_s, since) > DEFAULT_SILENT_AFTER_S
        )
        reasons = {name: entry.quarantine.reason for name, entry in known if entry.quarantine is not None}
        held = frozenset(reasons)
        lost_before, self._lost = self._lost, lost
        held_before, self._quarantined = self._quarantined, held
        with suppress(Unavailable):
            for action, names in (
                ("agents-lost", lost - lost_before),
                ("agents-back", lost_before - lost),
                ("quarantined", held - held_before),
                ("released", held_before - held),
            ):
                if names:
                    told = sorted(names, key=natural)
                    on = told[0] if len(told) == 1 else f"{len(told)} nodes"
                    why = reasons.get(on, "") if action == "quarantined" else ""
                    self.record(SERVER, action, on, why or shown_list(told))

    def _silent_workers(self, clock_s: float) -> list[WorkerEntry]:
        world = self._ledger.world
        since = self._listening_since
        least_s = min([DEFAULT_SILENT_AFTER_S, *map(queries.silent_after_s, world.groups.values())])
        return [
            worker
            for _, worker in self._registry.all_workers()
            if (silent_s := clock_s - max(worker.seen_at or since, since)) > least_s
            and silent_s > queries.silent_after_s(world.group_of(worker.worker))
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


def _same(one: tuple[object, object, int], other: tuple[object, object, int]) -> bool:
    """Compare what orders are made from; runs by identity, as they are large and never edited."""
    return one[0] is other[0] and one[1] is other[1] and one[2] == other[2]


def _unchanged(before: Mapping[int, WorkerOrder], orders: Mapping[int, WorkerOrder]) -> bool:
    """Compare orders by identity: each is the same object for as long as it says the same."""
    return before.keys() == orders.keys() and all(before[number] is orders[number] for number in orders)


def _no_worker(worker: str) -> NotFound:
    return NotFound(f"no worker {shown(worker)}", "look at the list of workers")
