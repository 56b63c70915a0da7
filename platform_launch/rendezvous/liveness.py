"""How long a node has been silent, measured by an observer that may itself be stopped for a while."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)

# If more time passes between two observations, only this much counts as silence.
LONGEST_LOOK_S = 2.0


class SilenceClock:
    """Adds up a silence from observations on any monotonic clock.

    If more than ``longest_look_s`` passes between two observations, only that much counts: the observer was
    stopped or its machine overloaded, and could not read signs of life either.
    """

    def __init__(self, now: float, longest_look_s: float = LONGEST_LOOK_S) -> None:
        self._longest_look_s = longest_look_s
        self._looked = now
        self.silent_s = 0.0

    def reset(self, now: float) -> None:
        """Restart the count: there was a sign of life."""
        self._looked, self.silent_s = now, 0.0

    def observe(self, now: float) -> float:
        """Count the time since the last observation as silence, and return the total."""
        self.silent_s += min(now - self._looked, self._longest_look_s)
        self._looked = now
        return self.silent_s


class Liveness(Generic[Node]):
    """How long each node's heartbeat count has not grown.

    A count that decreases is a replayed heartbeat, not a sign of life.
    """

    def __init__(self) -> None:
        self._nodes: dict[Node, tuple[int, SilenceClock]] = {}

    def observe(self, counts: Mapping[Node, int], now: float) -> None:
        """Record the current counts; nodes that are not among them are forgotten."""
        before, self._nodes = self._nodes, {}
        for node, count in counts.items():
            highest, clock = before.get(node) or (count - 1, SilenceClock(now))
            if count > highest:
                clock.reset(now)
            else:
                clock.observe(now)
            self._nodes[node] = max(count, highest), clock

    def silent_s(self, node: Node) -> float:
        """Return how long a node has been silent; 0 if it was never observed."""
        return self._nodes[node][1].silent_s if node in self._nodes else 0.0
