"""Target ``jobset``: one Indexed child Job, started again as a whole. Source: jobset api/jobset/v1alpha2."""

from __future__ import annotations

from platform_launch.jobs.codes import CODE_NOTES, NOT_COUNTED_NOTES
from platform_launch.jobs.job import Job
from platform_launch.jobs.kubernetes import indexed_job_spec
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, master_variables, metadata, pod_spec, spare_notes

NOT_USED = ("account", "requeue", "notice_s")

_ROLE = "node"
_PROJECTED = {
    "JOBSET_NAME": "jobset-name",
    "REPLICATED_JOB_NAME": "replicatedjob-name",
    "JOB_INDEX": "job-index",
    "JOBSET_RESTART_ATTEMPT": "restart-attempt",
}

_NOTES = """\
- One replicated Job with parallelism = nodes: of several, each would count its pods from 0.
- JobSet sets no variable of its own: NNODES and MASTER_ADDR say the topology, and its
  annotations are projected, the restart attempt among them.
- backoffLimit 0 hands any failure that counts to the JobSet, which starts all nodes again together.
- No coordinator: its label would hold MASTER_ADDR, and a label is shorter than many a host name.
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
    pod = pod_spec(job, variables=[*master_variables(job, address), *projected])
    document: Document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, kueue=True),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **jobset_spec(job, _ROLE, pod),
        },
    }
    return manifest(_NOTES + spare_notes(job) + CODE_NOTES + NOT_COUNTED_NOTES + POD_NOTES + notes, document)


def jobset_spec(job: Job, role: str, pod: Document, labels: Document | None = None) -> Document:
    """Return the failure policy and the one replicated Job of a JobSetSpec."""
    template: Document = {"metadata": {"labels": labels}} if labels else {}
    template["spec"] = indexed_job_spec(
        job, pod, backoff_limit=job.retries * job.started if job.spares else 0
    )
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
        "replicatedJobs": [{"name": role, "replicas": 1, "template": template}],
    }
