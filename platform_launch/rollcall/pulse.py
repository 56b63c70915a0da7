"""Who has gone silent, seen by an observer that may itself be stopped for a while."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Pulse(Generic[Node]):
    """Measures how long each node's beat has not changed.

    Time counts only while the observer looks: of a longer pause between two looks (the observer was stopped,
    its machine overloaded) no more than ``longest_look_s`` counts, since the beats of that pause could not be
    read either.
    """

    def __init__(self, longest_look_s: float) -> None:
        self._longest_look_s = longest_look_s
        self._last: dict[Node, bytes] = {}
        self._silent_s: dict[Node, float] = {}

    def observe(self, beats: Mapping[Node, bytes], elapsed_s: float) -> None:
        """Take the beats as they are, ``elapsed_s`` after the last look; a node not in them is forgotten."""
        counted_s = min(elapsed_s, self._longest_look_s)
        self._silent_s = {
            node: self._silent_s[node] + counted_s if self._last.get(node) == beat else 0.0
            for node, beat in beats.items()
        }
        self._last = dict(beats)

    def silent_s(self, node: Node) -> float:
        """Return for how long a node has been silent; 0 for one that was never observed."""
        return self._silent_s.get(node, 0.0)

    def silent_for(self, limit_s: float) -> list[Node]:
        """Return the nodes that have been silent for at least ``limit_s``."""
        return [node for node, silent in self._silent_s.items() if silent >= limit_s]
