"""Whether ranks follow the network: how many edges of a ring leave a switch, in the ranks' order and at best.

Ring collectives send from each node to the next one. A node knows its own place only, so the order is
compared when all have come. Sources: srun(1), SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN; NVML,
nvmlGpuFabricInfo_t (the UUID of an NVLink domain).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from platform_launch.text import Phrase

NETWORK_VARIABLE = "PLATFORM_LAUNCH_NETWORK"
"""The switches above a node, outermost first (``block1/rack2``), from a platform that knows them."""

_MOST_LISTED = 16

Place = tuple[str, ...]


def place_of(environment: Mapping[str, str], fabric: str = "") -> Place:
    """Return the switches above this node, outermost first, and its NVLink domain; empty if nobody tells."""
    given = environment.get(NETWORK_VARIABLE, "").strip("/ ")
    switches = tuple(given.split("/")) if given else _of_slurm(environment)
    return (*switches, fabric) if fabric else switches


def _of_slurm(environment: Mapping[str, str]) -> Place:
    address = environment.get("SLURM_TOPOLOGY_ADDR", "")
    kinds = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    # The node's own name comes last, and may have periods of its own.
    return tuple(address.split(".")[: kinds.count("switch") + kinds.count("block")]) if address else ()


def network_order(places: Sequence[Place]) -> list[int]:
    """Return the ranks so that nodes below one switch follow each other; node 0 stays first.

    Otherwise the order of the ranks is kept: of switches as of nodes, the one that came first comes first.
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


def order_warnings(places: Iterable[Place]) -> list[str]:
    """Say it if another order of the ranks would cross fewer switches; nothing if a place is not known."""
    places = list(places)
    if not all(places):
        return []
    order = network_order(places)
    now, best = crossings(places), crossings([places[rank] for rank in order])
    if now <= best:
        return []
    shown = Phrase(": nodes {order}", order=", ".join(map(str, order))) if len(order) <= _MOST_LISTED else ""
    return [
        Phrase(
            "the ranks do not follow the network: {now} of {edges} edges of a ring cross a switch, {best} in "
            "the network's order{shown} (--rank-order topology gives the ranks in that order)",
            now=now,
            edges=len(places),
            best=best,
            shown=shown,
        )
    ]
