"""Who has fallen silent, who is back, and whom agents have put in quarantine since the last look."""

from __future__ import annotations

from collections.abc import Iterator

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.core.clock import NEVER, Moment
from platform_launch.procguard.core.failures import reported
from platform_launch.procguard.core.ledger import World
from platform_launch.procguard.core.registry import DEFAULT_SILENT_AFTER_S, Registry, natural
from platform_launch.procguard.core.views import silent_after_s
from platform_launch.sentences import Sentence, listed, sentence


class SilenceWatch:
    """Compares the registry with what it held at the last look."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._silent: frozenset[WorkerName] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._quarantined: frozenset[str] = frozenset()

    def workers_changed(self, world: World, moment: Moment) -> bool:
        """Tell whether other workers are silent than before."""
        before, self._silent = self._silent, self._silent_workers(world, moment)
        return self._silent != before

    def news(self, moment: Moment) -> Iterator[tuple[str, str, Sentence]]:
        """Yield which nodes fell silent or came into quarantine, and which are back from there.

        An action, an object and a detail of the audit log for each of these, however many nodes they are.
        What the caller could not write down, and so did not come back for, is news the next time as well.
        """
        known = list(self._registry.nodes.items())
        late = moment.late(DEFAULT_SILENT_AFTER_S)
        lost = frozenset(name for name, entry in known if (entry.seen_at or NEVER) < late)
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
        least_s = min([DEFAULT_SILENT_AFTER_S, *map(silent_after_s, world.groups.values())])
        late = moment.late(least_s)
        return frozenset(
            worker.worker
            for _, worker in self._registry.all_workers()
            if (worker.seen_at or NEVER) < late
            and moment.silent_s(worker.seen_at) > silent_after_s(world.group_of(worker.worker))
        )
