"""From what one platform said, and what the user said by flag, to a Topology or a refusal.

Flags win field by field and settle whatever was wrong with exactly those fields. A command that was started
once per process is refused even then, unless flags say the whole place of the node: nodes, rank and address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError, UsageError, shown_list
from platform_launch.hostlist import MAX_HOSTS, parse_host, position
from platform_launch.platforms.reading import DEFAULT_PORT, FLAGS, Reading
from platform_launch.text import counted
from platform_launch.topology import Overrides, Topology

LOOPBACK = "127.0.0.1"

_WORDS = {
    "nnodes": "the number of nodes",
    "node_rank": "this node's rank",
    "master_addr": "the address of node 0",
}


def resolve(reading: Reading, overrides: Overrides, environment: Environment) -> Topology:
    """Apply flags, test for contradictions and build the Topology. Alters ``reading`` on the way.

    Raises TopologyError with the reading so far, or UsageError for a flag that cannot be used.
    """
    by_flag = apply_flags(reading, overrides)
    if overrides.spares and "nnodes" in by_flag and reading.nnodes:
        # The flag counts the nodes that train; a platform counts what it starts.
        reading.nnodes = Sourced(reading.nnodes.value + overrides.spares, f"{FLAGS['nnodes']} and --spares")
    if reading.nnodes and reading.nnodes.value == 1:
        _complete_single_node(reading)
    _check_hosts(reading, environment, by_flag)
    _check_range(reading)
    for name in ("nnodes", "hosts", "node_rank", "master_addr", "master_port", "nproc_per_node"):
        if name in reading.problems:
            error = reading.problems[name]
            error.hint = error.hint or f"pass {FLAGS.get(name, '--nnodes --node-rank --master-addr')}"
            raise with_reading(error, reading)
    topology = _topology(reading, overrides.spares)
    rank, moved_to = overrides.stands_in_for, overrides.moved_to
    if rank is not None:
        sources = {**topology.sources, "node_rank": f"node 0: this spare, {topology.node_rank}, stands in"}
        topology = replace(topology, node_rank=rank, sources=sources)
    if moved_to is not None:
        sources = {
            **topology.sources,
            "master_addr": f"the spare that is node 0 since {topology.master_addr} was lost",
        }
        topology = replace(topology, master_addr=moved_to, sources=sources)
    return topology


def is_complete(overrides: Overrides) -> bool:
    """Tell whether flags alone say a node's whole place: how many nodes, which one, where node 0 is."""
    return None not in (overrides.nnodes, overrides.node_rank, overrides.master_addr)


def apply_flags(reading: Reading, overrides: Overrides) -> frozenset[str]:
    """Put the flags over the reading and drop what they settle; return the fields they gave."""
    by_flag = frozenset(name for name in FLAGS if getattr(overrides, name) is not None)
    for name in by_flag:
        value = getattr(overrides, name)
        if name == "master_addr":
            value = _host_of_flag(value)
        setattr(reading, name, Sourced(value, FLAGS[name]))
        reading.problems.pop(name, None)
        reading.doubts.pop(name, None)
        reading.missing.pop(name, None)
    if "nnodes" in by_flag:
        reading.problems.pop("hosts", None)
    return by_flag


def _host_of_flag(value: str) -> str:
    try:
        return parse_host(value, "--master-addr")
    except TopologyError as error:
        raise UsageError(error.message) from None


def with_reading(error: TopologyError, reading: Reading) -> TopologyError:
    """Attach what could be read, for a refusal that shows it."""
    error.reading = reading.as_dict()
    return error


def _complete_single_node(reading: Reading) -> None:
    """Fill in what a job of one node need not be told."""
    reading.node_rank = reading.node_rank or Sourced(0, "the only node")
    reading.master_addr = reading.master_addr or Sourced(LOOPBACK, "the only node")


def _check_hosts(reading: Reading, environment: Environment, by_flag: frozenset[str]) -> None:
    """Compare the host list with the counts: it must have one entry a node, and this node at its rank."""
    if reading.hosts is None or reading.nnodes is None:
        return
    hosts, source = reading.hosts.value, reading.hosts.source
    if len(hosts) != reading.nnodes.value:
        nnodes = reading.nnodes
        message = f"{source} lists {counted(len(hosts), 'host')}, {nnodes.source} says {nnodes.value}"
        if "nnodes" in by_flag:
            reading.warnings.append(f"{message}: the list is not used")
            reading.hosts = None
        else:
            reading.refuse("nnodes", f"{message}: expected as many hosts as nodes")
        return
    own_names = environment.names_of_this_host() | reading.own_names
    place = position(hosts, own_names)
    if place is not None and reading.node_rank and place != reading.node_rank.value:
        message = (
            f"this node ({hosts[place]}) stands at place {place} of {source} ({shown_list(hosts)}), "
            f"but {reading.node_rank.source} says rank {reading.node_rank.value}"
        )
        if "node_rank" in by_flag:
            reading.warnings.append(message)
        else:
            reading.refuse("node_rank", f"{message}: expected both to agree")


def _check_range(reading: Reading) -> None:
    nnodes, node_rank = reading.nnodes, reading.node_rank
    if nnodes and nnodes.value > MAX_HOSTS:
        reading.refuse("nnodes", f"{nnodes.source}={nnodes.value}: expected at most {MAX_HOSTS} nodes")
    if nnodes and node_rank and node_rank.value >= nnodes.value:
        reading.refuse(
            "node_rank",
            f"node rank {node_rank.value} ({node_rank.source}) is out of range for "
            f"{counted(nnodes.value, 'node')} ({nnodes.source}): expected 0–{nnodes.value - 1}",
            "ranks count from 0; correct the variables, or pass --nnodes and --node-rank",
        )


def _topology(reading: Reading, spares: int) -> Topology:
    nnodes, node_rank, master_addr = reading.nnodes, reading.node_rank, reading.master_addr
    if not (nnodes and node_rank and master_addr):
        raise with_reading(_missing(reading), reading)
    if spares:
        nnodes = _without_spares(nnodes, spares, reading)
    port = reading.master_port or reading.default_port or DEFAULT_PORT
    evidence = {"platform": reading.evidence} if reading.evidence else {}
    required = {"nnodes": nnodes, "node_rank": node_rank, "master_addr": master_addr, "master_port": port}
    optional = {
        name: sourced
        for name in ("nproc_per_node", "hosts", "job_id", "restart_count", "interface")
        if (sourced := getattr(reading, name))
    }
    try:
        return Topology(
            platform=reading.platform,
            nnodes=nnodes.value,
            node_rank=node_rank.value,
            master_addr=master_addr.value,
            master_port=port.value,
            spares=spares,
            sources={
                **evidence,
                **{name: sourced.source for name, sourced in {**required, **optional}.items()},
            },
            warnings=(*reading.warnings, *reading.doubts.values()),
            **{name: sourced.value for name, sourced in optional.items()},
        )
    except TopologyError as error:
        raise with_reading(error, reading) from None


def _without_spares(started: Sourced[int], spares: int, reading: Reading) -> Sourced[int]:
    """Return how many of the nodes that were started train."""
    nnodes = started.value - spares
    if nnodes < 2:
        raise with_reading(
            TopologyError(
                f"--spares {spares} leaves {max(nnodes, 0)} of {counted(started.value, 'node')} "
                f"({started.source}): expected at least 2 that train",
                "the platform must start the nodes that train and the spares; raise its number of nodes",
            ),
            reading,
        )
    return Sourced(nnodes, f"{started.source}, less --spares {spares}")


def _and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _missing(reading: Reading) -> TopologyError:
    """Return the error that names every field nobody said, and the flags that supply them."""
    unknown = [name for name in _WORDS if getattr(reading, name) is None]
    reasons = [
        f"{_WORDS[name]} (no {variables})" if (variables := reading.missing.get(name)) else _WORDS[name]
        for name in unknown
    ]
    flags = _and([FLAGS[name] for name in unknown])
    advice = [reading.hint, reading.address_hint if "master_addr" in unknown else ""]
    alone = "; for a job of one node pass --nnodes 1" if "nnodes" in unknown else ""
    return TopologyError(
        f"platform {reading.platform} does not say {_and(reasons)}",
        "; or ".join([*filter(None, advice), f"pass {flags}{alone}"]),
    )
