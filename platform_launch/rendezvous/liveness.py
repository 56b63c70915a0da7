"""For how long somebody has been silent, seen by an observer that may itself be stopped for a while."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)

# Of a longer pause between two looks no more than this counts as silence.
LONGEST_LOOK_S = 2.0


class SilenceClock:
    """Adds up a silence by looks at moments of any clock that only goes forward.

    Of a longer pause between two looks than ``longest_look_s`` no more counts: the observer was stopped or
    its machine overloaded, and signs of life of that pause could not be read either.
    """

    def __init__(self, now: float, longest_look_s: float = LONGEST_LOOK_S) -> None:
        self._longest_look_s = longest_look_s
        self._looked = now
        self.silent_s = 0.0

    def heard(self, now: float) -> None:
        """Note a sign of life."""
        self._looked, self.silent_s = now, 0.0

    def observe(self, now: float) -> float:
        """Count the time since the last look as silence, and return how long that is in all."""
        self.silent_s += min(now - self._looked, self._longest_look_s)
        self._looked = now
        return self.silent_s


class Liveness(Generic[Node]):
    """For how long each node's heartbeat has not grown.

    A count that falls back is an old heartbeat shown again, and no sign of life.
    """

    def __init__(self) -> None:
        self._nodes: dict[Node, tuple[int, SilenceClock]] = {}

    def observe(self, counts: Mapping[Node, int], now: float) -> None:
        """Take the counts as they are; a node not in them is forgotten."""
        before, self._nodes = self._nodes, {}
        for node, count in counts.items():
            highest, clock = before.get(node) or (count - 1, SilenceClock(now))
            if count > highest:
                clock.heard(now)
            else:
                clock.observe(now)
            self._nodes[node] = max(count, highest), clock

    def silent_s(self, node: Node) -> float:
        """Return for how long a node has been silent; 0 for one that was never observed."""
        return self._nodes[node][1].silent_s if node in self._nodes else 0.0
