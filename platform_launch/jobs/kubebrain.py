"""Target ``kubebrain``: its TrainingJob. Its API is not public: only fields its users are shown."""

from __future__ import annotations

from platform_launch.jobs.codes import CODE_NOTES
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_spec
from platform_launch.topology import DEFAULT_MASTER_PORT

NOT_USED = ("account", "requeue", "notice_s", "time_limit_s", "retries", "queue")

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
    template = {"spec": pod_spec(job, variables=variables, restart_policy=None)}
    document: Document = {
        "apiVersion": "kubebrain.io/v1",
        "kind": "TrainingJob",
        "metadata": metadata(job),
        "spec": {"replicaSpecs": {"Worker": {"replicas": job.nodes, "template": template}}},
    }
    return manifest(_NOTES + CODE_NOTES + POD_NOTES + notes, document)
