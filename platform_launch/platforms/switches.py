"""The network switches above nodes, if the platform knows them.

Slurm tells each task its own (srun(1), SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN). Those of all
nodes are in topology.conf(5), in the folder of slurm.conf; Slurm ignores that file if there is a
topology.yaml, which does not name its partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.hostlist import expand

NETWORK_VARIABLE = "PLATFORM_LAUNCH_NETWORK"
"""The switches above a node, outermost first (``block1/rack2``), from a platform that knows them."""

Place = tuple[str, ...]
"""The switches above a node, outermost first; empty if unknown."""

# Where slurm.conf is unless SLURM_CONF names it (slurm.conf(5)); the second is slurmd's copy without one.
_FOLDERS = ("/etc/slurm", "/run/slurm/conf")


def place_of(environment: Mapping[str, str], fabric: str = "") -> Place:
    """Return the switches above this node, and its NVLink domain (``fabric``) as the innermost."""
    given = environment.get(NETWORK_VARIABLE, "").strip("/ ")
    switches = tuple(given.split("/")) if given else _of_slurm(environment)
    return (*switches, fabric) if fabric else switches


def _of_slurm(environment: Mapping[str, str]) -> Place:
    address = environment.get("SLURM_TOPOLOGY_ADDR", "")
    kinds = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    # The node's own name comes last, and may have periods of its own.
    return tuple(address.split(".")[: kinds.count("switch") + kinds.count("block")]) if address else ()


def places_of(environment: Environment, hosts: Sequence[str]) -> tuple[Place, ...]:
    """Return the switches above each of a Slurm job's hosts; empty if one of them is unknown."""
    conf = environment.get("SLURM_CONF", "").strip()
    for folder in (str(PurePosixPath(conf).parent),) if conf else _FOLDERS:
        if "topology.yaml" in environment.file_names(folder):
            return ()
        text = environment.read_file(f"{folder}/topology.conf")
        if text is not None:
            try:
                return _places(text, hosts)
            except TopologyError:  # a list of hosts that cannot be read
                return ()
    return ()


def _places(text: str, hosts: Sequence[str]) -> tuple[Place, ...]:
    above: dict[str, str] = {}  # nodes and switches; their names differ
    for names in _lines(text):
        switch = names.get("switchname") or names.get("blockname", "")
        for kind in ("nodes", "switches"):
            above.update(dict.fromkeys(expand(names[kind]) if kind in names else (), switch))
    places = tuple(tuple(_chain(host, above)) for host in hosts)
    return places if all(places) else ()


def _lines(text: str) -> Iterator[dict[str, str]]:
    """Yield the names and values of each line; names are in lower case, as their case has no meaning."""
    for line in text.replace("\\\n", " ").splitlines():
        words = (word.partition("=") for word in line.partition("#")[0].split())
        yield {name.lower(): value for name, _, value in words if value}


def _chain(name: str, above: Mapping[str, str]) -> list[str]:
    """Return what is above a node, outermost first; circular files end the chain."""
    chain: list[str] = []
    while (name := above.get(name, "")) and name not in chain:
        chain.append(name)
    return chain[::-1]
