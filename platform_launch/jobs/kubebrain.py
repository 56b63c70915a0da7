"""Target ``kubebrain``: its TrainingJob. Its API is not public: only fields its users are shown."""

from __future__ import annotations

from platform_launch.jobs import codes
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_template
from platform_launch.topology import DEFAULT_MASTER_PORT

NOT_USED = ("account", "requeue", "notice", "time_limit_s", "retries", "queue", "ttl_s", "gang", "runtime")

_NOTES = """\
- The platform numbers the replicas and sets the address of the first; DISTRIBUTED_JOB asks
  for that. It names no port: MASTER_PORT does.
- How it treats failed pods is not public: look there for a rule on exit codes.
"""


def render(job: Job, notes: str = "") -> str:
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
    return manifest(_NOTES + codes.notes(job) + POD_NOTES + notes, document)
