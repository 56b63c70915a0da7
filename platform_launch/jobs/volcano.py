"""Target ``volcano``: a vcjob with the pytorch plugin.

Source: volcano-sh/volcano pkg/controllers/job/plugins and pkg/webhooks/admission/jobs/validate.
"""

from __future__ import annotations

from platform_launch.jobs import codes, names
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, Notes, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_template
from platform_launch.text import Phrase
from platform_launch.topology import DEFAULT_MASTER_PORT

NOT_USED = ("account", "requeue", "notice", "time_limit_s", "scheduler", "gang", "runtime")

_NOTES = (
    Phrase("minAvailable is the number of nodes: all pods start together, or none does."),
    Phrase(
        "The pytorch plugin sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE (the number of pods) and RANK. The "
        "task master is node 0, and worker i is node i + 1."
    ),
    Phrase("The svc plugin publishes pods that are not ready yet, so that they find each other."),
    Phrase(
        "The first matching policy decides. RestartJob restarts all pods, at most maxRetry - 1 times: the "
        "job fails when Volcano has counted maxRetry ends."
    ),
)
_STOPPED_NOTE = Phrase(
    "After a preemption or a drain (PodEvicted, or exit code {stopped}) the job starts again. Volcano counts "
    "this as a failed attempt.",
    stopped=codes.STOPPED,
)


def render(job: Job, notes: Notes = ()) -> str:
    """Return the Volcano Job."""
    spec: Document = {"minAvailable": job.nodes, "schedulerName": "volcano"}
    spec["ttlSecondsAfterFinished"] = job.ttl_s
    if job.priority_class:
        spec["priorityClassName"] = job.priority_class
    if job.queue:
        spec["queue"] = names.check_queue(job.queue)
    if job.retries:
        # restarting.go: failed once retryCount, which the restart itself has raised, reaches maxRetry.
        spec["maxRetry"] = job.retries + 1
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
    return manifest((*_NOTES, *codes.notes(job), _STOPPED_NOTE, *POD_NOTES, *notes), document)


def _policies(job: Job) -> list[Document]:
    failed = "RestartJob" if job.retries else "TerminateJob"
    return [
        *({"exitCode": code, "action": "TerminateJob"} for code in codes.fatal(spares=False)),
        {"exitCode": codes.STOPPED, "action": "RestartJob"},
        {"event": "PodEvicted", "action": "RestartJob"},
        {"event": "PodFailed", "action": failed},
    ]


def _task(name: str, replicas: int, job: Job) -> Document:
    return {"name": name, "replicas": replicas, "template": pod_template(job)}
