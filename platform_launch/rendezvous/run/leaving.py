"""Why a node stops taking part in a run before the run itself has ended."""

from __future__ import annotations

from platform_launch.rendezvous.ending import EndKind, NodeEnding


class GivenUpError(Exception):
    """The launcher is gone, or was told to end, before the run began; ``ending`` is what all must end for."""

    def __init__(self, ending: NodeEnding | None = None) -> None:
        super().__init__()
        self.ending = ending


class NoPlaceError(Exception):
    """The run has started without this node, and no place in it became free in time."""


class LostError(Exception):
    """Node 0 is lost to this node."""

    def __init__(self, kind: EndKind, silent_s: float = 0.0) -> None:
        super().__init__(kind.value)
        self.kind = kind
        self.silent_s = silent_s
