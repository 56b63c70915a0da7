"""Groups and nodes as rows, and rows as groups and nodes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from platform_launch.procguard.group import Group, Run
from platform_launch.procguard.live import Node
from platform_launch.procguard.ranks import PLATFORM, Kind, Place, WorkerName
from platform_launch.procguard.shapes import Failure, GroupSettings, Phase
from platform_launch.topology import Topology


def group_row(group: Group) -> dict[str, Any]:
    """Return the columns of a group but its name."""
    return {
        "settings": group.settings.model_dump(mode="json"),
        "phase": group.phase.value,
        "phase_since": group.phase_since,
        "generation": group.generation,
        "run": _run_document(group.run) if group.run else None,
        "restarts_used": group.restarts_used,
        "then_phase": group.then.value if group.then else None,
        "failure": group.failure.model_dump(mode="json") if group.failure else None,
        "started_at": group.started_at,
        "ended_at": group.ended_at,
    }


def group_of(row: Row[Any], workers: tuple[WorkerName, ...]) -> Group:
    """Return the group a row means."""
    return Group(
        name=row.name,
        settings=GroupSettings.model_validate(row.settings),
        phase=Phase(row.phase),
        phase_since=row.phase_since,
        workers=workers,
        generation=row.generation,
        run=_run_of(row.run) if row.run else None,
        restarts_used=row.restarts_used,
        then=Phase(row.then_phase) if row.then_phase else None,
        failure=Failure.model_validate(row.failure) if row.failure else None,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def node_row(node: Node) -> dict[str, Any]:
    """Return the columns of a node but its name."""
    return {
        "instance": node.instance,
        "workers": node.workers,
        "credential_sha256": node.credential_sha256,
        "about": {
            "hostname": node.hostname,
            "addresses": node.addresses,
            "version": node.version,
            "command": node.command,
            "allowed": node.allowed,
        },
    }


def node_of(row: Row[Any]) -> Node:
    """Return the node a row means."""
    about = row.about
    return Node(
        name=row.name,
        instance=row.instance,
        workers=row.workers,
        hostname=about["hostname"],
        addresses=tuple(about["addresses"]),
        version=about["version"],
        command=tuple(about["command"]),
        allowed=None if about["allowed"] is None else tuple(about["allowed"]),
        credential_sha256=row.credential_sha256,
    )


def _run_document(run: Run) -> dict[str, Any]:
    """Write the rank table itself, not what it was made from: a later version's rule may differ."""
    first = run.places[0]
    return {
        "generation": run.generation,
        "settings": run.settings.model_dump(mode="json"),
        "kind": first.kind.value,
        "master_addr": first.topology.master_addr,
        "master_port": first.topology.master_port,
        "world_size": first.world_size,
        "hosts": first.topology.hosts,
        # In the order of rank.
        "places": [
            [place.worker.node, place.worker.number, place.local_rank, place.local_world_size]
            for place in run.places
        ],
        "idle": [[worker.node, worker.number] for worker in run.idle],
        "commands": dict(run.commands),
    }


def _run_of(document: dict[str, Any]) -> Run:
    kind = Kind(document["kind"])
    hosts = tuple(document["hosts"])
    node_ranks = {host: rank for rank, host in enumerate(hosts)}
    topologies: dict[str, Topology] = {}
    places = []
    for rank, (node, number, local_rank, local_world_size) in enumerate(document["places"]):
        topology = topologies.get(node)
        if topology is None:
            topology = topologies[node] = Topology(
                platform=PLATFORM,
                nnodes=len(hosts),
                node_rank=node_ranks[node],
                master_addr=document["master_addr"],
                master_port=document["master_port"],
                nproc_per_node=local_world_size if kind is Kind.PROCESS else None,
                hosts=hosts,
            )
        worker = WorkerName(node, number)
        places.append(
            Place(worker, rank, local_rank, document["world_size"], local_world_size, topology, kind)
        )
    return Run(
        generation=document["generation"],
        settings=GroupSettings.model_validate(document["settings"]),
        places=tuple(places),
        idle=tuple(WorkerName(node, number) for node, number in document["idle"]),
        commands={node: tuple(words) for node, words in document["commands"].items()},
    )
