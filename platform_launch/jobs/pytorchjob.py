"""Target ``pytorchjob``: Kubeflow's training-operator v1. Source: its pkg/apis/kubeflow.org/v1 at v1.9."""

from __future__ import annotations

from platform_launch.jobs.codes import TOLD_TO_END
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_spec

NOT_USED = ("account", "requeue", "notice_s")

_CONTAINER = "pytorch"  # the operator sets its variables in the container of this name only

_NOTES = f"""\
- The operator numbers the pods: the Master is node 0, Worker i is node i + 1. It sets its
  variables in the container called pytorch.
- nprocPerNode tells the operator and the launcher the same number of processes per node.
- restartPolicy ExitCode: a code below 128, the launcher's or the training's own, ends the job; a
  pod that a signal ended starts again, and so do its peers: all nodes of a run that was told to
  end (preempted, drained) return {TOLD_TO_END}.
- backoffLimit is at least 1: of 0 the operator makes that a preempted pod ends the job.
- cleanPodPolicy Running: finished pods stay, so that their logs can be read.
"""


def render(job: Job, notes: str = "") -> str:
    """Return the PyTorchJob."""
    replicas = {"Master": _replicas(job, 1)}
    if job.nodes > 1:
        replicas["Worker"] = _replicas(job, job.nodes - 1)
    policy: Document = {"cleanPodPolicy": "Running", "backoffLimit": max(1, job.retries)}
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
    return manifest(_NOTES + POD_NOTES + notes, document)


def _replicas(job: Job, count: int) -> Document:
    pod = pod_spec(job, container=_CONTAINER, restart_policy=None)
    return {"replicas": count, "restartPolicy": "ExitCode", "template": {"spec": pod}}
