"""Groups, nodes and events as rows, and rows as what they mean."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row

from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.ranks import PLATFORM, Place, WorkerKind, WorkerName
from platform_launch.procguard.api.shapes.events import AuditEvent
from platform_launch.procguard.api.shapes.groups import GroupFailure, GroupPhase, GroupSettings
from platform_launch.procguard.api.wire import JoinRequest
from platform_launch.procguard.core.group import Group, GroupRun
from platform_launch.procguard.core.registry import NodeRecord
from platform_launch.procguard.core.runs import RunRecord
from platform_launch.sentences import Sentence, quoted
from platform_launch.topology import Topology

_LONGEST_EVENT = 40_000
_LONGEST_QUOTED = 20_000


def group_row(group: Group) -> dict[str, Any]:
    """Return the columns of a group but its name."""
    return {
        "settings": group.settings.model_dump(mode="json"),
        "phase": group.phase.value,
        "phase_since": group.phase_since,
        "generation": group.generation,
        "run_number": group.run_number,
        "requested_by": group.requested_by[:64],
        "requested_at": group.requested_at,
        "previous_failure": _failure_document(group.previous_failure),
        "run": run_document(group.run) if group.run else None,
        "restarts_used": group.restarts_used,
        "then_phase": group.then.value if group.then else None,
        "failure": _failure_document(group.failure),
        "started_at": group.started_at,
        "ended_at": group.ended_at,
    }


def group_of(row: Row[Any], workers: tuple[WorkerName, ...]) -> Group:
    """Return the group a row means."""
    return Group(
        name=row.name,
        settings=GroupSettings.model_validate(row.settings),
        phase=GroupPhase(row.phase),
        phase_since=row.phase_since,
        workers=workers,
        generation=row.generation,
        run=_run_of(row.run) if row.run else None,
        run_number=row.run_number,
        requested_by=row.requested_by,
        requested_at=row.requested_at,
        previous_failure=_failure_of(row.previous_failure),
        restarts_used=row.restarts_used,
        then=GroupPhase(row.then_phase) if row.then_phase else None,
        failure=_failure_of(row.failure),
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def run_row(record: RunRecord) -> dict[str, Any]:
    """Return the columns of a run that change; :func:`new_run_row` has all."""
    return {
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "outcome": record.outcome.value if record.outcome else None,
        "failure": _failure_document(record.failure),
    }


def new_run_row(record: RunRecord) -> dict[str, Any]:
    """Return the columns of a run but its group and number."""
    workers = "|".join(str(place.worker) for place in record.run.places)
    return run_row(record) | {
        "generation": record.run.generation,
        "requested_by": record.requested_by[:64],
        "requested_at": record.requested_at,
        "restart": record.restart,
        "run": run_document(record.run),
        "workers": f"|{workers}|",
    }


def run_record_of(row: Row[Any]) -> RunRecord:
    """Return the run a row means."""
    return RunRecord(
        group=row.group_name,
        number=row.number,
        run=_run_of(row.run),
        requested_by=row.requested_by,
        requested_at=row.requested_at,
        restart=row.restart,
        started_at=row.started_at,
        ended_at=row.ended_at,
        outcome=GroupPhase(row.outcome) if row.outcome else None,
        failure=_failure_of(row.failure),
    )


def _failure_document(failure: GroupFailure | None) -> dict[str, Any] | None:
    return failure.model_dump(mode="json") if failure else None


def _failure_of(document: dict[str, Any] | None) -> GroupFailure | None:
    return GroupFailure.model_validate(document) if document else None


def sentence_document(sentence: Sentence | None) -> dict[str, Any] | None:
    """Return the column of an event's details; what is too long for one is cut."""
    if sentence is None:
        return None
    document = sentence.document()
    if len(json.dumps(document)) > _LONGEST_EVENT:
        return quoted(_english(sentence)[:_LONGEST_QUOTED]).document()
    return document


def event_of(row: Row[Any]) -> AuditEvent:
    """Return the event a row means."""
    sentence = Sentence.read(row.sentence) if row.sentence else None
    return audit_event(
        sentence, row.detail, id=row.id, at=row.at, who=row.who, action=row.action, object=row.object
    )


def audit_event(sentence: Sentence | None, detail: str, **about: Any) -> AuditEvent:
    """Return an entry of the audit log; ``detail`` is of one without a sentence."""
    if sentence is None:
        return AuditEvent(**about, detail=detail)
    return AuditEvent(**about, detail=_english(sentence), code=sentence.code, values=sentence.values)


def _english(sentence: Sentence) -> str:
    try:
        return english(sentence)
    except KeyError:  # of another version
        return sentence.code


def node_row(node: NodeRecord) -> dict[str, Any]:
    """Return the columns of a node but its name."""
    return {
        "instance": node.join.instance,
        "drained_by": node.drained_by[:64],
        "workers": node.join.workers,
        "credential_sha256": node.credential_sha256,
        "about": node.join.model_dump(mode="json", exclude={"node", "instance", "workers", "credential"}),
    }


def node_of(row: Row[Any]) -> NodeRecord:
    """Return the node a row means."""
    join = JoinRequest(node=row.name, instance=row.instance, workers=row.workers, **row.about)
    return NodeRecord(join, row.credential_sha256, row.drained_by)


def run_document(run: GroupRun) -> dict[str, Any]:
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


def _run_of(document: dict[str, Any]) -> GroupRun:
    kind = WorkerKind(document["kind"])
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
                nproc_per_node=local_world_size if kind is WorkerKind.PROCESS else None,
                hosts=hosts,
            )
        worker = WorkerName(node, number)
        places.append(
            Place(worker, rank, local_rank, document["world_size"], local_world_size, topology, kind)
        )
    return GroupRun(
        generation=document["generation"],
        settings=GroupSettings.model_validate(document["settings"]),
        places=tuple(places),
        idle=tuple(WorkerName(node, number) for node, number in document["idle"]),
        commands={node: tuple(words) for node, words in document["commands"].items()},
    )
