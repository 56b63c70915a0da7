"""Detects which nodes and workers fell silent, entered quarantine, or are back since the last check."""

from __future__ import annotations

from collections.abc import Iterator

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.core.clock import Moment
from platform_launch.procguard.core.failures import reported
from platform_launch.procguard.core.ledger import World
from platform_launch.procguard.core.registry import DEFAULT_SILENT_AFTER_S, Registry, natural
from platform_launch.procguard.core.views import silent_after_s
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
