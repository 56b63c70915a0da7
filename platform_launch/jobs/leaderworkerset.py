"""Target ``leaderworkerset``: one group of pods. Source: kubernetes-sigs/lws api/leaderworkerset/v1."""

from __future__ import annotations

from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_group, pod_template, spare_notes

NOT_USED = ("account", "requeue", "notice", "time_limit_s", "retries", "ttl_s", "runtime")

_NOTES = """\
- A LeaderWorkerSet is made for services: it starts a container again whenever it ends, after
  success too. Let the training resume from its last checkpoint, and delete the set when it
  has finished; a jobset ends by itself.
- One group (replicas 1) is one job; size counts its nodes, the leader (node 0) included.
- LeaderCreated starts workers without waiting for the leader to be ready.
"""

_RESTARTS = {
    False: (
        "RecreateGroupOnPodRestart",
        "- RecreateGroupOnPodRestart starts all nodes again together, whatever the exit code.\n",
    ),
    True: ("None", "- restartPolicy None starts a pod again by itself, whatever the exit code.\n"),
}
"""With spares or not → the restart policy and its note."""


def render(job: Job, notes: str = "") -> str:
    """Return the LeaderWorkerSet."""
    restart_policy, note = _RESTARTS[bool(job.spares)]
    document: Document = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(job, kueue=True),
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": job.started,
                "restartPolicy": restart_policy,
                # The pods belong to StatefulSets, which allow no restartPolicy but Always.
                "workerTemplate": pod_template(job, restart_policy="Always"),
            },
        },
    }
    return manifest(_NOTES + note + spare_notes(job) + POD_NOTES + notes, *pod_group(job), document)
