"""Target ``pytorchjob``: Kubeflow's training-operator v1. Source: its pkg/apis/kubeflow.org/v1 at v1.9."""

from __future__ import annotations

from dataclasses import replace

from platform_launch.jobs.codes import STOPPED, STOPPED_NOTE
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, Notes, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_group, pod_template
from platform_launch.text import Phrase

NOT_USED = ("account", "requeue", "notice", "runtime")

_CONTAINER = "pytorch"  # the operator sets its variables in the container of this name only

NO_ISTIO = {"sidecar.istio.io/inject": "false"}
ISTIO_NOTE = Phrase(
    "sidecar.istio.io/inject is false: in a namespace with Istio every pod would get a proxy, which breaks "
    "connections between the nodes and keeps the pod running after the training has ended."
)

_NOTES = (
    Phrase(
        "The Master is node 0, and Worker i is node i + 1. The operator sets its variables in the container "
        "called pytorch."
    ),
    Phrase("nprocPerNode gives the operator and the launcher the same number of processes per node."),
    Phrase(
        "The launcher restarts the training within the same pods (--max-restarts): the operator does not "
        "restart pods whose exit code is below 128."
    ),
    STOPPED_NOTE,
    Phrase(
        "With restartPolicy ExitCode the operator restarts pods that return {stopped} or that were killed by "
        "a signal. It does not count them: only the time limit ends that. If all nodes returned 0, the job "
        "is complete.",
        stopped=STOPPED,
    ),
    Phrase("backoffLimit is at least 1: with 0, the first preempted pod would end the job."),
    Phrase("cleanPodPolicy Running keeps finished pods, so that their logs can be read."),
)


def render(job: Job, notes: Notes = ()) -> str:
    """Return the PyTorchJob."""
    job = replace(job, options=(*job.options, *job.restart_option))
    replicas = {"Master": _replicas(job, 1)}
    if job.nodes > 1:
        replicas["Worker"] = _replicas(job, job.nodes - 1)
    policy: Document = {
        "cleanPodPolicy": "Running",
        "backoffLimit": max(1, job.retries),
        "ttlSecondsAfterFinished": job.ttl_s,
    }
    if job.time_limit_s is not None:
        policy["activeDeadlineSeconds"] = job.time_limit_s
    document: Document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(job, kueue=True),
        "spec": {
            # A string: the field takes words as well (auto, gpu, cpu), which may count CPUs.
            "nprocPerNode": str(job.gpus_per_node or 1),
            "runPolicy": policy,
            "pytorchReplicaSpecs": replicas,
        },
    }
    return manifest((*_NOTES, ISTIO_NOTE, *POD_NOTES, *notes), *pod_group(job), document)


def _replicas(job: Job, count: int) -> Document:
    template = pod_template(job, container=_CONTAINER, restart_policy=None, annotations=NO_ISTIO)
    return {"replicas": count, "restartPolicy": "ExitCode", "template": template}
