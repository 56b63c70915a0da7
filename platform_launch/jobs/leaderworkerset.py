"""Target ``leaderworkerset``: one group of pods. Source: kubernetes-sigs/lws api/leaderworkerset/v1."""

from __future__ import annotations

from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import Document, Notes, manifest
from platform_launch.jobs.pod import POD_NOTES, metadata, pod_group, pod_template, spare_notes
from platform_launch.text import Phrase

NOT_USED = ("account", "requeue", "notice", "time_limit_s", "retries", "ttl_s", "runtime")

_NOTES = (
    Phrase(
        "A LeaderWorkerSet is for services: it restarts every container that ends, even if it succeeded. Let "
        "the training resume from its last checkpoint, and delete the set when the training has finished. A "
        "jobset ends by itself."
    ),
    Phrase("One group (replicas: 1) is one job. size is its number of nodes, the leader (node 0) included."),
    Phrase("LeaderCreated starts the workers without waiting until the leader is ready."),
)

_RESTARTS = {
    False: (
        "RecreateGroupOnPodRestart",
        Phrase("RecreateGroupOnPodRestart restarts all nodes together, whatever the exit code."),
    ),
    True: ("None", Phrase("restartPolicy None restarts only the pod that ended, whatever the exit code.")),
}
"""Whether it may lose nodes → the restart policy and its note."""


def render(job: Job, notes: Notes = ()) -> str:
    """Return the LeaderWorkerSet."""
    restart_policy, note = _RESTARTS[bool(job.may_lose)]
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
    return manifest((*_NOTES, note, *spare_notes(job), *POD_NOTES, *notes), *pod_group(job), document)
