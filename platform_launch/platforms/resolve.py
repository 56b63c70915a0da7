"""Combines one platform's reading with the user's flags into a Topology or an error.

Flags override single fields and resolve any problem with those fields. A command that was started once per
process is refused even then, unless flags give the whole topology: nodes, rank and address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError, UsageError, shown_list
from platform_launch.hostlist import MAX_HOSTS, parse_host, position
from platform_launch.platforms.reading import DEFAULT_PORT, FLAGS, Reading
from platform_launch.text import Phrase, counted, joined
from platform_launch.topology import Overrides, Topology

LOOPBACK = "127.0.0.1"

_WORDS = {
    "nnodes": Phrase("the number of nodes"),
    "node_rank": Phrase("this node's rank"),
    "master_addr": Phrase("the address of node 0"),
}


def resolve(reading: Reading, overrides: Overrides, environment: Environment) -> Topology:
    """Apply flags, test for contradictions and build the Topology. Alters ``reading`` on the way.

    Raises TopologyError with the reading so far, or UsageError for a flag that cannot be used.
    """
    by_flag = apply_flags(reading, overrides)
    if overrides.spares and "nnodes" in by_flag and reading.nnodes:
        # The flag counts the nodes that train; a platform counts what it starts.
        reading.nnodes = Sourced(
            reading.nnodes.value + overrides.spares, Phrase("{flag} and --spares", flag=FLAGS["nnodes"])
        )
    if reading.nnodes and reading.nnodes.value == 1:
        _complete_single_node(reading)
    _check_hosts(reading, environment, by_flag)
    _check_range(reading)
    for name in ("nnodes", "hosts", "node_rank", "master_addr", "master_port", "nproc_per_node"):
        if name in reading.problems:
            error = reading.problems[name]
            error.hint = error.hint or Phrase(
                "pass {flag}", flag=FLAGS.get(name, "--nnodes --node-rank --master-addr")
            )
            raise with_reading(error, reading)
    topology = _topology(reading, overrides)
    rank, moved_to, remaining = overrides.stands_in_for, overrides.moved_to, overrides.remaining
    if rank is not None:
        sources = {
            **topology.sources,
            "node_rank": Phrase("from node 0; the platform gave {rank}", rank=topology.node_rank),
        }
        topology = replace(topology, node_rank=rank, sources=sources)
    if remaining is not None:
        sources = {
            **topology.sources,
            "nnodes": Phrase("the remaining ones of {nodes}", nodes=topology.nnodes),
        }
        missing = topology.nnodes - remaining
        topology = replace(topology, nnodes=remaining, missing=missing, min_nodes=None, sources=sources)
    if moved_to is not None:
        sources = {
            **topology.sources,
            "master_addr": Phrase(
                "the spare that became node 0 after {address} was lost", address=topology.master_addr
            ),
        }
        topology = replace(topology, master_addr=moved_to, sources=sources)
    return topology


def is_complete(overrides: Overrides) -> bool:
    """Return whether flags alone give the topology: number of nodes, node rank, address of node 0."""
    return None not in (overrides.nnodes, overrides.node_rank, overrides.master_addr)


def apply_flags(reading: Reading, overrides: Overrides) -> frozenset[str]:
    """Apply the flags to the reading and drop the problems that they resolve; return the fields that they
    set.
    """
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
    """Attach what could be read to an error that shows it."""
    error.reading = reading.as_dict()
    return error


def _complete_single_node(reading: Reading) -> None:
    """Fill in what is known in a job of one node."""
    reading.node_rank = reading.node_rank or Sourced(0, Phrase("the only node"))
    reading.master_addr = reading.master_addr or Sourced(LOOPBACK, Phrase("the only node"))


def _check_hosts(reading: Reading, environment: Environment, by_flag: frozenset[str]) -> None:
    """Compare the host list with the counts: it must have one entry per node, and this node at its rank."""
    if reading.hosts is None or reading.nnodes is None:
        return
    hosts, source = reading.hosts.value, reading.hosts.source
    if len(hosts) != reading.nnodes.value:
        nnodes = reading.nnodes
        message = Phrase(
            "{source} lists {hosts}, but {nnodes_source} is {nnodes}",
            source=source,
            hosts=counted(len(hosts), "host"),
            nnodes_source=nnodes.source,
            nnodes=nnodes.value,
        )
        if "nnodes" in by_flag:
            reading.warnings.append(Phrase("{message}: the list is not used", message=message))
            reading.hosts = None
        else:
            reading.refuse("nnodes", Phrase("{message}: expected as many hosts as nodes", message=message))
        return
    own_names = environment.names_of_this_host() | reading.own_names
    place = position(hosts, own_names)
    if place is not None and reading.node_rank and place != reading.node_rank.value:
        message = Phrase(
            "this node ({host}) is at index {place} of {source} ({hosts}), but {rank_source} gives rank "
            "{rank}",
            host=hosts[place],
            place=place,
            source=source,
            hosts=shown_list(hosts),
            rank_source=reading.node_rank.source,
            rank=reading.node_rank.value,
        )
        if "node_rank" in by_flag:
            reading.warnings.append(message)
        else:
            reading.refuse("node_rank", Phrase("{message}: expected both to agree", message=message))


def _check_range(reading: Reading) -> None:
    nnodes, node_rank = reading.nnodes, reading.node_rank
    if nnodes and nnodes.value > MAX_HOSTS:
        reading.refuse(
            "nnodes",
            Phrase(
                "{nnodes_source}={nnodes}: expected at most {most} nodes",
                nnodes_source=nnodes.source,
                nnodes=nnodes.value,
                most=MAX_HOSTS,
            ),
        )
    if nnodes and node_rank and node_rank.value >= nnodes.value:
        reading.refuse(
            "node_rank",
            Phrase(
                "node rank {rank} ({rank_source}) is out of range for {nodes} ({nnodes_source}): "
                "expected 0–{last}",
                rank=node_rank.value,
                rank_source=node_rank.source,
                nodes=counted(nnodes.value, "node"),
                nnodes_source=nnodes.source,
                last=nnodes.value - 1,
            ),
            "ranks count from 0; correct the variables, or pass --nnodes and --node-rank",
        )


def _topology(reading: Reading, overrides: Overrides) -> Topology:
    nnodes, node_rank, master_addr = reading.nnodes, reading.node_rank, reading.master_addr
    spares = overrides.spares
    if not (nnodes and node_rank and master_addr):
        raise with_reading(_missing(reading), reading)
    if spares:
        nnodes = _without_spares(nnodes, spares, reading)
    port = reading.master_port or reading.default_port or DEFAULT_PORT
    evidence = {"platform": reading.evidence} if reading.evidence else {}
    required = {"nnodes": nnodes, "node_rank": node_rank, "master_addr": master_addr, "master_port": port}
    optional = {
        name: sourced
        for name in ("nproc_per_node", "accelerators", "hosts", "job_id", "restart_count", "interface")
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
            min_nodes=overrides.min_nodes,
            port_was_chosen=reading.master_port is not None,
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
                Phrase(
                    "--spares {spares} leaves {left} of {nodes} ({source}): expected at least 2 that train",
                    spares=spares,
                    left=max(nnodes, 0),
                    nodes=counted(started.value, "node"),
                    source=started.source,
                ),
                "the platform must start the nodes that train and the spares; raise its number of nodes",
            ),
            reading,
        )
    return Sourced(nnodes, Phrase("{source} minus --spares {spares}", source=started.source, spares=spares))


def _and(parts: Sequence[str]) -> Phrase:
    first, last = joined(parts[:-1]), joined(parts[-1:])
    return Phrase("{first} and {last}", first=first, last=last) if len(parts) > 1 else last


def _or(advice: Sequence[str]) -> Phrase:
    first = joined(advice[:1])
    return Phrase("{first}; or {others}", first=first, others=_or(advice[1:])) if len(advice) > 1 else first


def _missing(reading: Reading) -> TopologyError:
    """Return the error that names every missing field and the flags that supply them."""
    unknown = [name for name in _WORDS if getattr(reading, name) is None]
    reasons = [
        Phrase("{what} (no {variables})", what=_WORDS[name], variables=variables)
        if (variables := reading.missing.get(name))
        else _WORDS[name]
        for name in unknown
    ]
    flags = _and([FLAGS[name] for name in unknown])
    advice = [reading.hint, reading.address_hint if "master_addr" in unknown else ""]
    alone = Phrase("; for a job of one node pass --nnodes 1") if "nnodes" in unknown else ""
    message = Phrase(
        "platform {platform} does not provide {reasons}", platform=reading.platform, reasons=_and(reasons)
    )
    if reading.platform == "local":
        message = Phrase("no platform was detected that provides {reasons}", reasons=_and(reasons))
    return TopologyError(
        message,
        _or([*filter(None, advice), Phrase("pass {flags}{alone}", flags=flags, alone=alone)]),
    )
