"""Target ``trainjob``: Kubeflow Trainer v2, a TrainJob with a runtime of its own, or with the cluster's.

The TrainJob's own fields for volumes and pod settings were renamed three times (podSpecOverrides,
podTemplateOverrides, runtimePatches) and none reaches the grace period or the failure policy. A
TrainingRuntime holds a whole JobSet template and is stable. Source: kubeflow/trainer
pkg/apis/trainer/v1alpha1.
"""

from __future__ import annotations

from platform_launch.jobs.job import KUBERNETES_ONLY, Job
from platform_launch.jobs.jobset import jobset_notes, jobset_spec
from platform_launch.jobs.manifest import Document, Notes, manifest
from platform_launch.jobs.pod import POD_NOTES, container_spec, metadata, pod_group, pod_template
from platform_launch.jobs.pytorchjob import ISTIO_NOTE, NO_ISTIO
from platform_launch.text import Phrase

NOT_USED = ("account", "requeue", "notice", "ttl_s")

_CARRIED_BY_TRAINJOB = (
    "image",
    "namespace",
    "rdma",
    "resources",
    "gpu_resource",
    "labels",
    "annotations",
    "runtime",
)
NOT_USED_WITH_RUNTIME = (
    *NOT_USED,
    *(field for field in KUBERNETES_ONLY if field not in (*_CARRIED_BY_TRAINJOB, *NOT_USED)),
    *("exclude", "retries", "time_limit_s"),
)
"""What a runtime of the cluster decides."""

_API = "trainer.kubeflow.org/v1alpha1"
_ROLE = "node"  # the replicated Job and the container that the torch plugin looks for

_TORCH_NOTE = Phrase(
    "The torch policy sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, which the "
    "launcher reads. numProcPerNode is set even if it is 1, because its default is the number of CPUs."
)

_RUNTIME_NOTE = Phrase(
    "The TrainingRuntime holds what a TrainJob cannot set: /dev/shm, the grace period and the failure "
    "policy. If the TrainJob is refused because its TrainingRuntime is not known yet, submit the file again."
)


def render(job: Job, notes: Notes = ()) -> str:
    """Return the TrainingRuntime and the TrainJob, or the TrainJob alone for a runtime of the cluster."""
    trainer: Document = {"numNodes": job.nodes, "numProcPerNode": job.gpus_per_node or 1}
    if job.runtime is not None:
        trainer |= _trainer(job)
        reference = {"kind": job.runtime.kind, "name": job.runtime.name}
        of_the_cluster = Phrase(
            "The cluster's runtime decides on volumes, /dev/shm, the grace period, placement and restarts. "
            "It needs a terminationGracePeriodSeconds of at least {grace_s}, and a memory volume at "
            "/dev/shm.",
            grace_s=job.grace_s,
        )
        return manifest((_TORCH_NOTE, of_the_cluster, *notes), _train_job(job, trainer, reference))
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    template = pod_template(job, container=_ROLE, annotations=NO_ISTIO)
    own = metadata(job)
    own["labels"] = {"trainer.kubeflow.org/framework": "torch", **own.get("labels", {})}
    runtime: Document = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": own,
        "spec": {
            # Empty: its numProcPerNode went in 2.2, and the TrainJob gives the number.
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": jobset_spec(job, _ROLE, template, labels)},
        },
    }
    train_job = _train_job(job, trainer, {"kind": "TrainingRuntime", "name": job.name})
    return manifest(
        (_RUNTIME_NOTE, _TORCH_NOTE, ISTIO_NOTE, *jobset_notes(job), *POD_NOTES, *notes),
        *pod_group(job),
        runtime,
        train_job,
    )


def _train_job(job: Job, trainer: Document, reference: Document) -> Document:
    return {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata(job, kueue=True),
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }


def _trainer(job: Job) -> Document:
    """Return what a TrainJob itself may set of the runtime's container."""
    container = container_spec(job, _ROLE, [])
    carried = {
        "image": "image",
        "command": "command",
        "args": "args",
        "env": "env",
        "resources": "resourcesPerNode",
    }
    return {name: container[key] for key, name in carried.items() if key in container}
