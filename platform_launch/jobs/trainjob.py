"""Target ``trainjob``: Kubeflow Trainer v2, a TrainJob with a runtime of its own.

The TrainJob's own fields for volumes and pod settings were renamed three times (podSpecOverrides,
podTemplateOverrides, runtimePatches) and none reaches the grace period or the failure policy. A
TrainingRuntime holds a whole JobSet template and is stable. Source: kubeflow/trainer
pkg/apis/trainer/v1alpha1.
"""

from __future__ import annotations

from platform_launch.jobs.codes import CODE_NOTES, NOT_COUNTED_NOTES
from platform_launch.jobs.job import Job
from platform_launch.jobs.jobset import jobset_spec
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_spec

NOT_USED = ("account", "requeue", "notice_s")

_API = "trainer.kubeflow.org/v1alpha1"
_ROLE = "node"  # the replicated Job and the container that the torch plugin looks for

_NOTES = """\
- The TrainingRuntime carries what a TrainJob cannot say: /dev/shm, the grace period and the
  failure policy. It is the cluster's torch-distributed runtime, made for this job.
- Its torch policy sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, which
  the launcher reads. numProcPerNode is said even where it is 1: left out, it would become the
  number of CPUs.
"""


def render(job: Job, notes: str = "") -> str:
    """Return the TrainingRuntime and the TrainJob."""
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    runtime: Document = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": {**metadata(job), "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            # Empty: its numProcPerNode went in 2.2, and the TrainJob says the number.
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": jobset_spec(job, _ROLE, pod_spec(job, container=_ROLE), labels)},
        },
    }
    trainer = {"numNodes": job.nodes, "numProcPerNode": job.gpus_per_node or 1}
    train_job: Document = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata(job, kueue=True),
        "spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": job.name}, "trainer": trainer},
    }
    return manifest(_NOTES + CODE_NOTES + NOT_COUNTED_NOTES + POD_NOTES + notes, runtime, train_job)
