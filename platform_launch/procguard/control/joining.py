"""How nodes come and go: who owns a name, the credentials of agents, and who fell silent or is back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from hashlib import sha256

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.wire import JoinRequest
from platform_launch.procguard.control.queries import silent_after_s
from platform_launch.procguard.core.failures import reported
from platform_launch.procguard.core.registry import (
    DEFAULT_SILENT_AFTER_S,
    Moment,
    NodeEntry,
    NodeRecord,
    Registry,
    ServerClock,
    WorkerEntry,
    natural,
)
from platform_launch.procguard.core.world import WorkerRow, World
from platform_launch.procguard.database.store import Ledger
from platform_launch.sentences import Sentence, listed, sentence


class SilenceWatch:
    """Compares the registry with its state at the last check."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._silent: frozenset[WorkerName] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._quarantined: frozenset[str] = frozenset()

    def workers_changed(self, world: World, moment: Moment) -> bool:
        """Return whether the set of silent workers has changed."""
        before, self._silent = self._silent, self._silent_workers(world, moment)
        return self._silent != before

    def news(self, moment: Moment) -> Iterator[tuple[str, str, Sentence]]:
        """Yield which nodes fell silent or entered quarantine, and which are back.

        Each is an action, an object and a detail for the audit log, one for any number of nodes. If the
        caller fails to write one and stops, it is yielded again the next time.
        """
        known = list(self._registry.nodes.items())
        lost = frozenset(
            name for name, entry in known if moment.silent_s(entry.seen_at) > DEFAULT_SILENT_AFTER_S
        )
        held = {name: entry.quarantine for name, entry in known if entry.quarantine is not None}
        quarantined = frozenset(held)
        changes = (
            ("agents-lost", lost - self._lost),
            ("agents-back", self._lost - lost),
            ("quarantined", quarantined - self._quarantined),
            ("released", self._quarantined - quarantined),
        )
        for action, names in changes:
            if names:
                ordered = sorted(names, key=natural)
                on = ordered[0] if len(ordered) == 1 else f"{len(ordered)} nodes"
                why = held.get(on) if action == "quarantined" else None
                detail = reported(why) if why is not None else None
                names_only = sentence("nodes", nodes=listed(ordered), count=len(ordered))
                yield action, on, detail or names_only
                if action in ("agents-lost", "agents-back"):
                    self._lost ^= names
                else:
                    self._quarantined ^= names

    def _silent_workers(self, world: World, moment: Moment) -> frozenset[WorkerName]:
        return frozenset(
            worker.worker
            for _, worker in self._registry.all_workers()
            if moment.silent_s(worker.seen_at) > silent_after_s(world.group_of(worker.worker))
        )


_MOST_RECORDED = 16
"""Limit on installations recorded in the audit log for asking for the name of a living agent."""


def credential_hash(credential: str) -> str:
    """Return the hash that is stored of a credential. It is 256 random bits, so a fast hash is enough."""
    return sha256(credential.encode()).hexdigest()


class Joining:
    """Adds nodes, up to ``limit``, and removes them. The caller holds the ledger's lock."""

    def __init__(self, ledger: Ledger, registry: Registry, clock: ServerClock, limit: int) -> None:
        self._limit = limit
        self._ledger = ledger
        self._registry = registry
        self._clock = clock

    def join(self, join: JoinRequest) -> str:
        """Add a node and return its agent's credential.

        Raises RequestRefused if a living agent has the name, unless this one shows its credential, and for a
        new name if the limit on nodes is reached.
        """
        before = self._registry.nodes.get(join.node)
        if before is None and len(self._registry.nodes) >= self._limit:
            raise RequestRefused("nodes-limit", limit=str(self._limit))
        other = before is not None and before.node.join.instance != join.instance
        if before is not None and self._is_alive(before):
            same = not other and credential_hash(join.credential) == before.node.credential_sha256
            if not same:
                self._refuse(before, join)
        credential = secrets.token_urlsafe(32)
        node = NodeRecord(
            join=join.model_copy(update={"credential": ""}),
            credential_sha256=credential_hash(credential),
            drained_by=before.node.drained_by if before else "",
        )
        self._write(node, before.node if before else None)
        self._register(node, before if not other else None)
        return credential

    def forget(self, name: str, who: str) -> None:
        """Remove a node that is gone.

        Raises NotFound, or RequestRefused while its agent is alive or its workers are in a run.
        """
        entry = self._registry.node(name)
        if self._is_alive(entry):
            raise RequestRefused("agent-alive", node=name, seconds=f"{DEFAULT_SILENT_AFTER_S:g}")
        world = self._ledger.world
        mine = [worker for worker in world.workers if worker.node == name]
        for worker in mine:
            group = world.group_of(worker)
            if group is not None and group.active:
                raise RequestRefused("worker-in-run", worker=str(worker), group=group.name)
        with self._ledger.change(world.with_rows((), mine)) as change:
            change.delete_node(name)
            change.event(self._clock.now(), who, "forget", name)
        self._registry.remove(name)

    def _is_alive(self, entry: NodeEntry) -> bool:
        return self._clock.moment().silent_s(entry.seen_at) <= DEFAULT_SILENT_AFTER_S

    def _refuse(self, entry: NodeEntry, join: JoinRequest) -> None:
        owner = entry.node.join.hostname or "another machine"
        if join.instance not in entry.refused and len(entry.refused) < _MOST_RECORDED:
            with self._ledger.change(self._ledger.world) as change:
                detail = sentence(
                    "name-taken", host=_host(join.hostname), owner=_host(entry.node.join.hostname)
                )
                change.event(self._clock.now(), "server", "join-refused", join.node, detail)
            entry.refused.add(join.instance)
        seconds = f"{DEFAULT_SILENT_AFTER_S:g}"
        raise RequestRefused("node-taken", node=join.node, host=owner, seconds=seconds)

    def _write(self, node: NodeRecord, before: NodeRecord | None) -> None:
        """Write the node and its workers. Those it no longer has are deleted, unless their group is
        active.
        """
        world = self._ledger.world
        wanted = {WorkerName(node.name, number) for number in range(node.join.workers)}
        surplus = [row.worker for row in world.on_node(node.name) if row.worker not in wanted]
        removed = [worker for worker in surplus if not ((group := world.group_of(worker)) and group.active)]
        new = [WorkerRow(worker, None) for worker in sorted(wanted) if worker not in world.workers]
        with self._ledger.change(world.with_rows(new, removed)) as change:
            change.write_node(node)
            change.write_workers(new)
            change.delete_workers(removed)
            event = _join_event(node.join, before.join if before else None)
            if event is not None:
                change.event(self._clock.now(), "server", event[0], node.name, event[1])

    def _register(self, node: NodeRecord, same: NodeEntry | None) -> None:
        """Accept the node's heartbeats from now on. Earlier reports of the same installation remain valid."""
        clock_s = self._clock.clock_s()
        workers: dict[int, WorkerEntry] = {}
        for row in self._ledger.world.on_node(node.name):
            known = same.workers.get(row.worker.number) if same else None
            worker = known or WorkerEntry(row.worker)
            if row.worker.number < node.join.workers:
                worker.seen_at = clock_s
            workers[row.worker.number] = worker
        self._registry.add(NodeEntry(node, workers, seen_at=clock_s))


def _join_event(node: JoinRequest, before: JoinRequest | None) -> tuple[str, Sentence] | None:
    """Return the event of a join, None if nothing is new."""
    limit = (
        sentence("any-command") if node.allowed is None else sentence("limited-to", count=len(node.allowed))
    )
    detail = sentence("joined", workers=node.workers, host=_host(node.hostname), limit=limit)
    if before is None:
        return "joined", detail
    if before.instance != node.instance:
        return "taken-over", sentence("taken-over", joined=detail, host=_host(before.hostname))
    changed: list[str | Sentence] = [
        name
        for name in ("workers", "labels", "hostname", "addresses", "version", "command", "allowed")
        if getattr(before, name) != getattr(node, name)
    ]
    return ("rejoined", sentence("rejoined", joined=detail, field=changed)) if changed else None


def _host(name: str) -> str | Sentence:
    return name or sentence("unnamed-host")
