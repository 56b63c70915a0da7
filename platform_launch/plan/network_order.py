"""Whether ranks follow the network: how many edges of a ring cross a switch, in the ranks' order and at best.

Ring collectives send from each node to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from platform_launch.environment import Environment
from platform_launch.platforms.switches import Place, places_of
from platform_launch.text import Phrase, joined
from platform_launch.topology import Topology
from platform_launch.values import dataclass

_MOST_LISTED = 16
_FEWEST = 4  # fewer nodes form the same ring in any order


@dataclass(frozen=True)
class RankOrder:
    """``crossings`` of ``edges`` cross a switch in the ranks' order, ``best`` in the network's ``order``."""

    edges: int
    crossings: int
    best: int
    order: tuple[int, ...]

    @property
    def warning(self) -> Phrase | None:
        """The warning that the network's order is better, if it is."""
        if self.crossings <= self.best:
            return None
        return Phrase(
            "the ranks do not follow the network: {now} of {edges} edges of a ring cross a switch, {best} in "
            "the network's order{shown} (--rank-order topology gives the ranks in that order)",
            now=self.crossings,
            edges=self.edges,
            best=self.best,
            shown=self.shown,
        )

    @property
    def shown(self) -> Phrase | str:
        """The network's order as a part of a sentence; empty for many nodes."""
        if len(self.order) > _MOST_LISTED:
            return ""
        return Phrase(": nodes {order}", order=joined(self.order))

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "edges": self.edges,
            "crossings": self.crossings,
            "best": self.best,
            "order": list(self.order),
        }


def compare_orders(places: Iterable[Place]) -> RankOrder | None:
    """Compare the ranks with the network, from each node's switches by rank; None if one is unknown."""
    places = tuple(places)
    if not places or not all(places):
        return None
    order = network_order(places)
    best = crossings([places[rank] for rank in order])
    return RankOrder(len(places), crossings(places), best, tuple(order))


def order_of_job(env: Environment, topology: Topology) -> RankOrder | None:
    """Compare them if this node knows the whole network: Slurm's topology.conf is readable here.

    Otherwise the nodes compare when all have joined.
    """
    hosts = topology.hosts[: topology.nnodes]
    if topology.platform != "slurm" or not _FEWEST <= topology.nnodes == len(hosts):
        return None
    return compare_orders(places_of(env, hosts))


def network_order(places: Sequence[Place]) -> list[int]:
    """Return the ranks so that nodes below one switch follow each other; node 0 stays first.

    Otherwise the order of the ranks is kept, for switches and for nodes.
    """
    first: dict[Place, int] = {}
    for rank, place in enumerate(places):
        for depth in range(1, len(place) + 1):
            first.setdefault(place[:depth], rank)
    keys = [tuple(first[place[:depth]] for depth in range(1, len(place) + 1)) for place in places]
    return sorted(range(len(places)), key=lambda rank: (keys[rank], rank))


def crossings(places: Sequence[Place]) -> int:
    """Return how many edges of the ring through these places lead from one switch to another."""
    return sum(one != places[index - 1] for index, one in enumerate(places))
