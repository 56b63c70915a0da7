"""Target ``pytorchjob``: Kubeflow's training-operator v1. Source: its pkg/apis/kubeflow.org/v1 at v1.9."""

from __future__ import annotations

from dataclasses import replace

from platform_launch.jobs.codes import STOPPED
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_group, pod_template

NOT_USED = ("account", "requeue", "notice", "runtime")

_CONTAINER = "pytorch"  # the operator sets its variables in the container of this name only

NO_ISTIO = {"sidecar.istio.io/inject": "false"}
ISTIO_NOTES = """\
- sidecar.istio.io/inject is false: in a namespace with Istio each pod would get a proxy, which breaks the
  nodes' own connections and keeps the pod running when the training has ended.
"""

_NOTES = f"""\
- The operator numbers the pods: the Master is node 0, Worker i is node i + 1. It sets its
  variables in the container called pytorch.
- nprocPerNode tells the operator and the launcher the same number of processes per node.
- Retries are the launcher's own, in the same pods (--max-restarts): the operator restarts no pod whose exit
  code is below 128, and does not count those that it restarts.
- restartPolicy ExitCode: a pod that a signal ended starts again, without limit, and so do its peers: all
  nodes of a run that was asked to stop (preempted, drained) return {STOPPED}. Only the time limit ends that.
- backoffLimit is at least 1: of 0 the operator makes that a preempted pod ends the job.
- cleanPodPolicy Running: finished pods stay, so that their logs can be read.
"""


def render(job: Job, notes: str = "") -> str:
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
    return manifest(_NOTES + ISTIO_NOTES + POD_NOTES + notes, *pod_group(job), document)


def _replicas(job: Job, count: int) -> Document:
    template = pod_template(job, container=_CONTAINER, restart_policy=None, annotations=NO_ISTIO)
    return {"replicas": count, "restartPolicy": "ExitCode", "template": template}
