"""Kubernetes itself: Indexed Job, JobSet, LeaderWorkerSet, and what users project by the downward API.

Only LeaderWorkerSet provides everything. The others provide a pod's index; the number of pods, and a name for
the first one, must come from the manifest. Sources: kubernetes.io "Job with Pod-to-Pod Communication"; jobset
api/v1alpha2; lws pkg/utils/pod/pod_utils.go.
"""

from __future__ import annotations

import re

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import shown
from platform_launch.hostlist import short_name
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.local import assume_one_node
from platform_launch.platforms.reading import USER_NNODES, Reading
from platform_launch.text import Phrase

_TWO_INDICES = re.compile(r"(.+)-([0-9]{1,6})-([0-9]{1,6})")
_ORDINAL = re.compile(r"(.+)-([0-9]{1,6})")


def _refine_indexed_job(reading: Reading, environment: Environment) -> None:
    if reading.nnodes is None and (size := environment.text("WORLD_SIZE")):
        reading.hint = Phrase(
            "WORLD_SIZE={size} is not read here, since it may count processes: {hint}",
            size=shown(size.value),
            hint=reading.hint,
        )
    index = reading.node_rank
    if index is None:
        return
    if reading.nnodes and index.value >= reading.nnodes.value:
        reading.refuse(
            "node_rank",
            Phrase(
                "JOB_COMPLETION_INDEX={index} with {nnodes_source}={nnodes}: expected an index below the "
                "number of nodes",
                index=index.value,
                nnodes_source=reading.nnodes.source,
                nnodes=reading.nnodes.value,
            ),
            "with completions above parallelism, indices are work items and not nodes: make them equal",
        )
    hostname = environment.get("HOSTNAME", "").strip()
    job = re.fullmatch(rf"(.+)-{index.value}(-[a-z0-9]{{5}})?", hostname)
    service = environment.text("SVC_NAME")
    if reading.master_addr is None and job and service:
        reading.compose_master_addr(f"{job[1]}-0.{service.value}", "HOSTNAME and SVC_NAME", "SVC_NAME")
    _doubt_index(reading, hostname)


def _doubt_index(reading: Reading, hostname: str) -> None:
    """A JobSet's second child Job counts from 0 again; its pods are called ``…-<job>-<index>``."""
    shape = _TWO_INDICES.fullmatch(hostname)
    if shape is None or int(shape[2]) == 0:
        return
    master = short_name(reading.master_addr.value) if reading.master_addr else ""
    if master != f"{shape[1]}-{shape[2]}-0":
        reading.refuse(
            "node_rank",
            Phrase(
                "HOSTNAME={hostname} looks like pod {pod} of child Job {child} of a JobSet, where "
                "JOB_COMPLETION_INDEX counts from 0 in every child Job",
                hostname=shown(hostname),
                pod=shape[3],
                child=shape[2],
            ),
            "project JOBSET_NAME, REPLICATED_JOB_NAME and JOB_INDEX into the pod, or pass --node-rank",
        )


def _refine_jobset(reading: Reading, environment: Environment) -> None:
    _rank_in_jobset(reading, environment)
    jobset, job = environment.text("JOBSET_NAME"), environment.text("REPLICATED_JOB_NAME")
    if reading.master_addr is None and jobset and job:
        address = f"{jobset.value}-{job.value}-0-0.{jobset.value}"
        reading.compose_master_addr(address, "JOBSET_NAME and REPLICATED_JOB_NAME", "JOBSET_NAME")


def _rank_in_jobset(reading: Reading, environment: Environment) -> None:
    """Turn the index inside one child Job into the index over all of them: job × parallelism + index."""
    index = reading.node_rank
    job_index = reading.attempt("node_rank", lambda: environment.integer("JOB_INDEX"), "JOB_INDEX")
    if index is None:
        return
    shape = _TWO_INDICES.fullmatch(environment.get("HOSTNAME", "").strip())
    if job_index is None and shape and int(shape[3]) == index.value:
        job_index = Sourced(int(shape[2]), "HOSTNAME")
    replicas = reading.attempt(
        "node_rank", lambda: environment.integer("REPLICATED_JOB_REPLICAS", 1), "JOB_INDEX"
    )
    if replicas and replicas.value == 1:
        job_index = Sourced(0, replicas.source)
    if job_index and job_index.value == 0:
        reading.node_rank = index
    elif job_index and replicas and reading.nnodes and reading.nnodes.value % replicas.value == 0:
        parallelism = reading.nnodes.value // replicas.value
        rank = job_index.value * parallelism + index.value
        reading.node_rank = Sourced(
            rank,
            Phrase(
                "{job_index_source} × {parallelism} + {index_source}",
                job_index_source=job_index.source,
                parallelism=parallelism,
                index_source=index.source,
            ),
        )
        if index.value >= parallelism:
            reading.refuse(
                "node_rank",
                Phrase(
                    "{index_source}={index}, but a child Job has {parallelism} pods",
                    index_source=index.source,
                    index=index.value,
                    parallelism=parallelism,
                ),
            )
    else:
        reading.node_rank = None
        reading.refuse(
            "node_rank",
            Phrase(
                "JOB_COMPLETION_INDEX={index} counts within one child Job, and no variable gives the index "
                "of that child Job",
                index=index.value,
            ),
            "project JOB_INDEX and REPLICATED_JOB_REPLICAS into the pod, or pass --node-rank",
        )


def _refine_downward(reading: Reading, environment: Environment) -> None:
    """A StatefulSet's pod is called ``<set>-<ordinal>``; the count and the service must be projected."""
    name = environment.text("POD_NAME") or environment.text("HOSTNAME")
    ordinal = _ORDINAL.fullmatch(name.value) if name else None
    counted = reading.nnodes is not None or "nnodes" in reading.problems
    projected = "POD_NAME" in environment or "SVC_NAME" in environment
    if not counted and not (projected and ordinal):
        assume_one_node(reading, environment)
        if reading.nnodes and reading.nnodes.value == 1:
            reading.doubts["nnodes"] = _alone(ordinal, name)
        return
    if reading.nnodes and reading.nnodes.value == 1:
        return
    if ordinal is None or name is None:
        reading.missing["node_rank"] = "POD_NAME=<set>-<ordinal>"
        reading.hint = Phrase(
            "a plain Job does not number its pods: make it an Indexed Job (completionMode: Indexed; "
            "`platform-launch job kubernetes` writes a complete one); for a StatefulSet: {hint}",
            hint=reading.hint,
        )
        return
    reading.node_rank = Sourced(int(ordinal[2]), Phrase("ordinal of {name_source}", name_source=name.source))
    service, namespace = environment.text("SVC_NAME"), environment.text("POD_NAMESPACE")
    if reading.master_addr is None and service:
        domain = f".{namespace.value}.svc.cluster.local" if namespace else ""
        address = f"{ordinal[1]}-0.{service.value}{domain}"
        reading.compose_master_addr(address, "POD_NAME and SVC_NAME", "SVC_NAME")


def _alone(ordinal: re.Match[str] | None, name: Sourced[str] | None) -> str:
    """Warn about a pod that counts as one node but may be one of several, each of which would train alone."""
    pod = Phrase(" ({source}={name})", source=name.source, name=shown(name.value)) if name else ""
    if ordinal:
        others: str = Phrase(
            "if it is pod {ordinal} of a StatefulSet, give it POD_NUMS or NNODES", ordinal=ordinal[2]
        )
    else:
        others = Phrase(
            "if a Job starts several pods of it, each of them trains alone: use completionMode: Indexed "
            "(`platform-launch job kubernetes` writes a whole Job), or --ranks-from"
        )
    return Phrase(
        "no variable gives the number of nodes of this pod's job{pod}: assuming one node; {others}; "
        "--nnodes 1 confirms one node",
        pod=pod,
        others=others,
    )


INDEXED_JOB = Dialect(
    name="indexed_job",
    title="Kubernetes Indexed Job",
    marks=(("JOB_COMPLETION_INDEX",),),
    nnodes=USER_NNODES,
    node_rank=("JOB_COMPLETION_INDEX",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    same_nnodes=USER_NNODES,
    hint="set NNODES and MASTER_ADDR=<job>-0.<headless service> in the pod template (with its subdomain)",
    refine=_refine_indexed_job,
)

JOBSET = Dialect(
    name="jobset",
    title="Kubernetes JobSet",
    marks=tuple(
        ("JOB_COMPLETION_INDEX", name)
        for name in ("JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX", "JOBSET_RESTART_ATTEMPT")
    ),
    nnodes=USER_NNODES,
    node_rank=("JOB_COMPLETION_INDEX",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=("JOBSET_NAME",),
    restart_count=("JOBSET_RESTART_ATTEMPT",),
    same_nnodes=USER_NNODES,
    hint="set NNODES (replicas × parallelism) in the pod template",
    refine=_refine_jobset,
)

LWS = Dialect(
    name="lws",
    title="LeaderWorkerSet",
    marks=(("LWS_LEADER_ADDRESS",), ("LWS_GROUP_SIZE",), ("LWS_WORKER_INDEX",)),
    nnodes=("LWS_GROUP_SIZE",),
    node_rank=("LWS_WORKER_INDEX",),
    master_addr=("LWS_LEADER_ADDRESS",),
    nproc_per_node=("NPROC_PER_NODE",),
)

DOWNWARD = Dialect(
    name="downward",
    title="Kubernetes pod, downward API or StatefulSet",
    grade="B",
    marks=(("KUBERNETES_SERVICE_HOST",),),
    nnodes=("POD_NUMS", *USER_NNODES),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT", "POD_PORT"),
    nproc_per_node=("NPROC_PER_NODE",),
    same_nnodes=USER_NNODES,
    hint="project POD_NAME, POD_NUMS and SVC_NAME into the pod",
    refine=_refine_downward,
)
