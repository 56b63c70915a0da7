"""Target ``jobset``: one Indexed child Job, started again as a whole. Source: jobset api/jobset/v1alpha2."""

from __future__ import annotations

from platform_launch.jobs import codes
from platform_launch.jobs.job import Job
from platform_launch.jobs.kubernetes import INDEX_NOTES, indexed_job_spec
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import (
    POD_NOTES,
    master_variables,
    metadata,
    pod_group,
    pod_template,
    spare_notes,
)

NOT_USED = ("account", "requeue", "notice", "runtime")

_ROLE = "node"
_PROJECTED = {
    "JOBSET_NAME": "jobset-name",
    "REPLICATED_JOB_NAME": "replicatedjob-name",
    "JOB_INDEX": "job-index",
    "JOBSET_RESTART_ATTEMPT": "restart-attempt",
}

_NOTES = """\
- One replicated Job with parallelism = nodes: of several, each would count its pods from 0.
- JobSet sets no variable of its own: NNODES and MASTER_ADDR give the topology, and its
  annotations are projected, the restart attempt among them.
- No coordinator: its label would hold MASTER_ADDR, and a label is shorter than many a host name.
"""

_WITHOUT_SPARES = """\
- backoffLimitPerIndex 0: any failure that counts goes to the JobSet, which starts all nodes again together.
"""


def render(job: Job, notes: str = "") -> str:
    """Return the JobSet."""
    projected = [
        {
            "name": name,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['jobset.sigs.k8s.io/{key}']"}},
        }
        for name, key in _PROJECTED.items()
    ]
    address = f"{job.name}-{_ROLE}-0-0.{job.name}"
    template = pod_template(job, variables=[*master_variables(job, address), *projected])
    document: Document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, kueue=True),
        "spec": {
            "ttlSecondsAfterFinished": job.ttl_s,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **jobset_spec(job, _ROLE, template),
        },
    }
    return manifest(_NOTES + jobset_notes(job) + POD_NOTES + notes, *pod_group(job), document)


def jobset_notes(job: Job) -> str:
    """Return the notes on restarts, which every JobSet shares."""
    deadline = (
        "- activeDeadlineSeconds is the child Job's: the time counts from each start of all nodes.\n"
        if job.time_limit_s is not None and job.retries
        else ""
    )
    restarts = INDEX_NOTES if job.spares else _WITHOUT_SPARES
    return restarts + deadline + spare_notes(job) + codes.notes(job) + codes.NOT_COUNTED_NOTES


def jobset_spec(job: Job, role: str, template: Document, labels: Document | None = None) -> Document:
    """Return the failure policy and the one replicated Job of a JobSetSpec."""
    child: Document = {"metadata": {"labels": labels}} if labels else {}
    child["spec"] = indexed_job_spec(job, template, retries_per_node=job.retries if job.spares else 0)
    return {
        "failurePolicy": {
            "maxRestarts": job.retries,
            "rules": [
                {
                    "name": "mendTheJob",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
                }
            ],
        },
        "replicatedJobs": [{"name": role, "replicas": 1, "template": child}],
    }
