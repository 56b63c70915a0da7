"""Target ``kubebrain``: a TrainingJob. The API is not public: only fields of its users' manifests are set."""

from __future__ import annotations

from platform_launch.jobs import codes
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, Notes, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_template
from platform_launch.text import Phrase
from platform_launch.topology import DEFAULT_MASTER_PORT

NOT_USED = ("account", "requeue", "notice", "time_limit_s", "retries", "queue", "ttl_s", "gang", "runtime")

_NOTES = (
    Phrase(
        "DISTRIBUTED_JOB asks the platform to number the replicas and to set the address of the first one. "
        "The platform sets no port, so MASTER_PORT is set here."
    ),
    Phrase(
        "How the platform treats failed pods is not public. If it has rules for exit codes, use those below."
    ),
)


def render(job: Job, notes: Notes = ()) -> str:
    """Return the TrainingJob."""
    variables = [
        {"name": "DISTRIBUTED_JOB", "value": "true"},
        {"name": "MASTER_PORT", "value": str(DEFAULT_MASTER_PORT)},
    ]
    template = pod_template(job, variables=variables, restart_policy=None)
    document: Document = {
        "apiVersion": "kubebrain.io/v1",
        "kind": "TrainingJob",
        "metadata": metadata(job),
        "spec": {"replicaSpecs": {"Worker": {"replicas": job.nodes, "template": template}}},
    }
    return manifest((*_NOTES, *codes.notes(job), *POD_NOTES, *notes), document)
