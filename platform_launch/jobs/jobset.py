"""Target ``jobset``: one Indexed child Job, restarted as a whole. Source: jobset api/jobset/v1alpha2."""

from __future__ import annotations

from platform_launch.jobs import codes
from platform_launch.jobs.job import Job
from platform_launch.jobs.kubernetes import INDEX_NOTE, indexed_job_spec
from platform_launch.jobs.manifest import Document, Notes, manifest
from platform_launch.jobs.pod import (
    POD_NOTES,
    master_variables,
    metadata,
    pod_group,
    pod_template,
    spare_notes,
)
from platform_launch.text import Phrase

NOT_USED = ("account", "requeue", "notice", "runtime")

_ROLE = "node"
_PROJECTED = {
    "JOBSET_NAME": "jobset-name",
    "REPLICATED_JOB_NAME": "replicatedjob-name",
    "JOB_INDEX": "job-index",
    "JOBSET_RESTART_ATTEMPT": "restart-attempt",
}

_NOTES = (
    Phrase(
        "One replicated Job whose parallelism is the number of nodes. Several Jobs would each number their "
        "pods from 0."
    ),
    Phrase(
        "JobSet sets no environment variables: NNODES and MASTER_ADDR give the topology, and the others come "
        "from annotations that JobSet sets."
    ),
    Phrase(
        "There is no coordinator: JobSet would put MASTER_ADDR into a label, which may be too short for it."
    ),
)

_RESTART_NOTE = Phrase(
    "backoffLimitPerIndex is 0, so that the first failed attempt of a node fails its Job, and the JobSet "
    "restarts all nodes together."
)


def render(job: Job, notes: Notes = ()) -> str:
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
    return manifest((*_NOTES, *jobset_notes(job), *POD_NOTES, *notes), *pod_group(job), document)


def jobset_notes(job: Job) -> tuple[Phrase, ...]:
    """Return the notes on restarts, which every JobSet shares."""
    is_timed = job.time_limit_s is not None and job.retries
    deadline = Phrase(
        "activeDeadlineSeconds belongs to the child Job: the time limit starts anew with each restart of all "
        "nodes."
    )
    return (
        INDEX_NOTE if job.may_lose else _RESTART_NOTE,
        *((deadline,) if is_timed else ()),
        *spare_notes(job),
        *codes.notes(job),
        codes.NOT_COUNTED_NOTE,
    )


def jobset_spec(job: Job, role: str, template: Document, labels: Document | None = None) -> Document:
    """Return the failure policy and the one replicated Job of a JobSetSpec."""
    child: Document = {"metadata": {"labels": labels}} if labels else {}
    child["spec"] = indexed_job_spec(job, template, retries_per_node=job.retries if job.may_lose else 0)
    return {
        "failurePolicy": {
            "maxRestarts": job.retries,
            "rules": [
                {
                    "name": "doNotRestart",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
                }
            ],
        },
        "replicatedJobs": [{"name": role, "replicas": 1, "template": child}],
    }
