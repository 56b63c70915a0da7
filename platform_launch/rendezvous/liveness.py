"""Who has gone silent, seen by an observer that may itself be stopped for a while."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)

# Of a longer pause between two looks no more than this counts as silence.
LONGEST_LOOK_S = 2.0


class Liveness(Generic[Node]):
    """Measures how long each node's heartbeat has not grown.

    Time counts only while the observer looks: of a longer pause between two looks (the observer was stopped,
    its machine overloaded) no more than ``longest_look_s`` counts, since the heartbeats of that pause could
    not be read either. A count that falls back is an old heartbeat shown again, and no sign of life.
    """

    def __init__(self, longest_look_s: float = LONGEST_LOOK_S) -> None:
        self._longest_look_s = longest_look_s
        self._highest: dict[Node, int] = {}
        self._silent_s: dict[Node, float] = {}

    def observe(self, counts: Mapping[Node, int], elapsed_s: float) -> None:
        """Take the counts as they are, ``elapsed_s`` after the last look; a node not in them is forgotten."""
        counted_s = min(elapsed_s, self._longest_look_s)
        self._silent_s = {
            node: self._silent_s.get(node, 0.0) + counted_s
            if count <= self._highest.get(node, count - 1)
            else 0.0
            for node, count in counts.items()
        }
        self._highest = {node: max(count, self._highest.get(node, count)) for node, count in counts.items()}

    def silent_s(self, node: Node) -> float:
        """Return for how long a node has been silent; 0 for one that was never observed."""
        return self._silent_s.get(node, 0.0)
