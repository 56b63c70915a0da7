"""Target ``kubernetes``: an Indexed Job and the headless Service that gives its pods names.

Source: kubernetes.io, "Job with Pod-to-Pod Communication" and "Pod failure policy".
"""

from __future__ import annotations

from platform_launch.jobs.codes import CODE_NOTES, NOT_COUNTED_NOTES, pod_failure_policy
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, master_variables, metadata, pod_spec, spare_notes

NOT_USED = ("account", "requeue", "notice_s")

_JOB_NAME_LABEL = "job-name"

_NOTES = """\
- completionMode Indexed numbers the pods (JOB_COMPLETION_INDEX). A plain Job with parallelism
  gives its pods no rank.
- The headless Service and the pods' subdomain, both, make <job>-0.<service> resolve;
  publishNotReadyAddresses lets the pods meet while they start.
- Kubernetes says neither the number of nodes nor an address: NNODES and MASTER_ADDR do.
- backoffLimit counts pods, so it is retries × nodes: when one node fails, all do.
"""


def render(job: Job, notes: str = "") -> str:
    """Return the Service and the Job."""
    service: Document = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {_JOB_NAME_LABEL: job.name},
        },
    }
    spec = indexed_job_spec(
        job,
        pod_spec(
            job,
            variables=master_variables(job, f"{job.name}-0.{job.name}"),
            subdomain=job.name,
        ),
        backoff_limit=job.retries * job.started,
    )
    document: Document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, kueue=True),
        "spec": spec,
    }
    return manifest(
        _NOTES + spare_notes(job) + CODE_NOTES + NOT_COUNTED_NOTES + POD_NOTES + notes, service, document
    )


def indexed_job_spec(job: Job, pod: Document, *, backoff_limit: int) -> Document:
    """Return a JobSpec in which every pod is one node, all of them at the same time."""
    spec: Document = {
        "completionMode": "Indexed",
        "parallelism": job.started,
        "completions": job.started,
        "backoffLimit": backoff_limit,
    }
    if job.time_limit_s is not None:
        spec["activeDeadlineSeconds"] = job.time_limit_s
    return {**spec, "podFailurePolicy": pod_failure_policy(), "template": {"spec": pod}}
