"""Target ``volcano``: a vcjob with the pytorch plugin.

Source: volcano-sh/volcano pkg/controllers/job/plugins and pkg/webhooks/admission/jobs/validate.
"""

from __future__ import annotations

from platform_launch.jobs.codes import CODE_NOTES, MEND_THE_JOB
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_spec
from platform_launch.topology import DEFAULT_MASTER_PORT

NOT_USED = ("account", "requeue", "notice_s", "time_limit_s")

_NOTES = """\
- minAvailable = nodes: all pods start together or none does.
- The pytorch plugin sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE (pods) and RANK: the task master
  is node 0, worker i is node i + 1.
- svc publishes pods that are not ready yet: they must find each other to become ready.
- The first policy that fits counts. The job starts again as a whole, at most maxRetry times.
"""


def render(job: Job, notes: str = "") -> str:
    """Return the Volcano Job."""
    spec: Document = {"minAvailable": job.nodes, "schedulerName": "volcano"}
    if job.queue:
        spec["queue"] = job.queue
    if job.retries:
        spec["maxRetry"] = job.retries  # 0 would be taken for "not set", which is 3
    tasks = [_task("master", 1, job)]
    if job.nodes > 1:
        tasks.append(_task("worker", job.nodes - 1, job))
    document: Document = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": metadata(job),
        "spec": {
            **spec,
            "plugins": {
                "env": [],
                "svc": ["--publish-not-ready-addresses=true"],
                "pytorch": ["--master=master", "--worker=worker", f"--port={DEFAULT_MASTER_PORT}"],
            },
            "policies": _policies(job),
            "tasks": tasks,
        },
    }
    return manifest(_NOTES + CODE_NOTES + POD_NOTES + notes, document)


def _policies(job: Job) -> list[Document]:
    again = "RestartJob" if job.retries else "TerminateJob"
    return [
        *({"exitCode": code, "action": "TerminateJob"} for code in MEND_THE_JOB),
        {"event": "PodEvicted", "action": again},
        {"event": "PodFailed", "action": again},
    ]


def _task(name: str, replicas: int, job: Job) -> Document:
    return {"name": name, "replicas": replicas, "template": {"spec": pod_spec(job)}}
