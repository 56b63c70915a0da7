"""Target ``kubernetes``: an Indexed Job and the headless Service that gives its pods names.

Source: kubernetes.io, "Job with Pod-to-Pod Communication", "Pod failure policy", "Backoff limit per index"
and "Success policy".
"""

from __future__ import annotations

from platform_launch.jobs import codes
from platform_launch.jobs.job import Job
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

_JOB_NAME_LABEL = "job-name"

_NOTES = (
    Phrase(
        "completionMode Indexed gives each pod its rank (JOB_COMPLETION_INDEX). The pods of a plain Job have "
        "none."
    ),
    Phrase(
        "The headless Service and the pods' subdomain together make <job>-0.<service> resolve. With "
        "publishNotReadyAddresses the pods find each other while they start."
    ),
    Phrase(
        "Kubernetes sets neither the number of nodes nor the address of node 0: NNODES and MASTER_ADDR do."
    ),
)

INDEX_NOTE = Phrase(
    "backoffLimitPerIndex counts and delays the restarts of each node separately: 10, 20, 40 s. backoffLimit "
    "would count the failed pods of all nodes: with 7 nodes, every restart would wait 10 minutes, even after "
    "a drain."
)


def render(job: Job, notes: Notes = ()) -> str:
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
    template = pod_template(
        job, variables=master_variables(job, f"{job.name}-0.{job.name}"), subdomain=job.name
    )
    document: Document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, kueue=True),
        "spec": {
            "ttlSecondsAfterFinished": job.ttl_s,
            **indexed_job_spec(job, template, retries_per_node=job.retries),
        },
    }
    restarts = (INDEX_NOTE, *spare_notes(job), *codes.notes(job), codes.NOT_COUNTED_NOTE)
    return manifest((*_NOTES, *restarts, *POD_NOTES, *notes), *pod_group(job), service, document)


def indexed_job_spec(job: Job, template: Document, *, retries_per_node: int) -> Document:
    """Return a JobSpec in which every pod is one node, all of them at the same time.

    It fails when more nodes than it can do without have used their retries. With spares it is complete when
    as many pods as nodes have succeeded; if it may also continue with fewer, when node 0 has, the last one.
    """
    spec: Document = {
        "completionMode": "Indexed",
        "parallelism": job.started,
        "completions": job.started,
        "backoffLimitPerIndex": retries_per_node,
        "maxFailedIndexes": job.may_lose,
    }
    if job.may_lose > job.spares:
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    elif job.spares:
        spec["successPolicy"] = {"rules": [{"succeededCount": job.nodes}]}
    if job.time_limit_s is not None:
        spec["activeDeadlineSeconds"] = job.time_limit_s
    container = template["spec"]["containers"][0]["name"]
    return {**spec, "podFailurePolicy": codes.pod_failure_policy(job, container), "template": template}
