"""How nodes come and go: whose name is whose, and the credentials of agents."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256

from platform_launch.procguard.ledger import Ledger, Membership
from platform_launch.procguard.live import DEFAULT_SILENT_AFTER_S, LiveNode, LiveWorker, Node, Roster
from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.refused import NotFound, Refused
from platform_launch.procguard.wire import Join

_MOST_TOLD = 16
"""Installations that asked for one living agent's name: further ones are not in the audit log."""


def credential_hash(credential: str) -> str:
    """Return what is kept of a credential. It is 256 random bits: a fast hash is enough."""
    return sha256(credential.encode()).hexdigest()


def roster_of(ledger: Ledger) -> Roster:
    """Return the nodes that were written down, none of them heard yet."""
    roster = Roster()
    workers: dict[str, dict[int, LiveWorker]] = {node.name: {} for node in ledger.nodes}
    for worker in ledger.world.workers:
        workers[worker.node][worker.number] = LiveWorker(worker)
    for node in ledger.nodes:
        roster.put(LiveNode(node, workers[node.name]))
    return roster


class Joining:
    """Takes nodes in and lets them go. The caller holds the ledger's lock."""

    def __init__(self, ledger: Ledger, roster: Roster, now: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._roster = roster
        self._now = now

    def join(self, join: Join, clock_s: float, listening_since: float) -> str:
        """Take a node in and return its agent's credential.

        Raises Refused where an agent of another installation has the name and is alive.
        """
        before = self._roster.nodes.get(join.node)
        other = before is not None and before.node.instance != join.instance
        if (
            before is not None
            and other
            and before.silent_s(clock_s, listening_since) <= DEFAULT_SILENT_AFTER_S
        ):
            self._refuse(before, join)
        credential = secrets.token_urlsafe(32)
        node = Node(
            name=join.node,
            instance=join.instance,
            workers=join.workers,
            hostname=join.hostname,
            addresses=join.addresses,
            version=join.version,
            command=join.command,
            allowed=join.allowed,
            credential_sha256=credential_hash(credential),
        )
        self._write(node, before.node if before else None)
        self._take_in(node, before if not other else None, clock_s)
        return credential

    def forget(self, name: str, who: str, clock_s: float, listening_since: float) -> None:
        """Remove a node that is gone. Raises Refused while its agent is alive or its workers are in a run."""
        live = self._roster.nodes.get(name)
        if live is None:
            raise NotFound(f"no node {name!r}", "it may have been removed already")
        if live.silent_s(clock_s, listening_since) <= DEFAULT_SILENT_AFTER_S:
            raise Refused(
                f"the agent of {name} is alive", f"stop it first, then wait {DEFAULT_SILENT_AFTER_S:g} s"
            )
        world = self._ledger.world
        mine = [worker for worker in world.workers if worker.node == name]
        for worker in mine:
            group = world.group_of(worker)
            if group is not None and group.active:
                raise Refused(
                    f"{worker} is in {group.name}, which is {group.phase.value}", "stop that group first"
                )
        with self._ledger.change(world.with_rows((), mine)) as change:
            change.delete_node(name)
            change.event(self._now(), who, "forget", name, "")
        self._roster.remove(name)

    def _refuse(self, live: LiveNode, join: Join) -> None:
        owner = live.node.hostname or "another machine"
        if join.instance not in live.refused and len(live.refused) < _MOST_TOLD:
            with self._ledger.change(self._ledger.world) as change:
                detail = (
                    f"an agent on {join.hostname or 'an unnamed host'} asked for the name; {owner} has it"
                )
                change.event(self._now(), "server", "join-refused", join.node, detail)
            live.refused.add(join.instance)
        raise Refused(
            f"node {join.node!r} is the name of an agent that is alive, on {owner}",
            "give each node's agent a --node name of its own; if this one replaces it, stop the other "
            f"and try again {DEFAULT_SILENT_AFTER_S:g} s later",
        )

    def _write(self, node: Node, before: Node | None) -> None:
        """Write the node and its workers. Those it no longer has leave, unless their group is in a run."""
        world = self._ledger.world
        wanted = {WorkerName(node.name, number) for number in range(node.workers)}
        surplus = [worker for worker in world.workers if worker.node == node.name and worker not in wanted]
        gone = [worker for worker in surplus if not ((group := world.group_of(worker)) and group.active)]
        new = [Membership(worker, None) for worker in sorted(wanted - world.workers.keys())]
        with self._ledger.change(world.with_rows(new, gone)) as change:
            change.put_node(node)
            change.put_workers(new)
            change.delete_workers(gone)
            action, detail = _told(node, before)
            if action:
                change.event(self._now(), "server", action, node.name, detail)

    def _take_in(self, node: Node, same: LiveNode | None, clock_s: float) -> None:
        """Let the node be heard from now on. What the same installation reported before still holds."""
        rows = [row for row in self._ledger.world.workers.values() if row.worker.node == node.name]
        workers: dict[int, LiveWorker] = {}
        for row in sorted(rows, key=lambda row: row.worker):
            known = same.workers.get(row.worker.number) if same else None
            worker = known or LiveWorker(row.worker)
            if row.worker.number < node.workers:
                worker.seen_at = clock_s
            workers[row.worker.number] = worker
        self._roster.put(LiveNode(node, workers, seen_at=clock_s))


def _told(node: Node, before: Node | None) -> tuple[str, str]:
    """Return the event of a join, an empty action where nothing is new."""
    limited = "any command" if node.allowed is None else f"limited to {len(node.allowed)} command(s)"
    detail = f"{node.workers} worker(s) on {node.hostname or 'an unnamed host'}, {limited}"
    if before is None:
        return "joined", detail
    if before.instance != node.instance:
        return "taken-over", f"{detail}; the agent on {before.hostname or 'an unnamed host'} was silent"
    changed = [
        name
        for name in ("workers", "hostname", "addresses", "version", "command", "allowed")
        if getattr(before, name) != getattr(node, name)
    ]
    return ("rejoined", f"{detail}; changed: {', '.join(changed)}") if changed else ("", "")
