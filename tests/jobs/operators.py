"""What each release of each operator takes, of the fields that the manifests set: the one table of versions.

A server refuses a field that its CustomResourceDefinition lacks (``unknown field``), so one removed upstream
must fail a test here, not at a user's. To add a release: read its types, add a row. Pod and Job templates are
Kubernetes' own and are checked by its schemas, of the releases in ``KUBERNETES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kubernetes_validate

KUBERNETES = ("1.29", "1.33", kubernetes_validate.latest_version())
"""By kubernetes-validate, its newest included. Schemas before 1.29 demand onPodConditions in every rule of a
podFailurePolicy, against their own description."""

TEMPLATE = object()
"""A pod or Job template."""

Schema = Any
"""A type or several, a tuple of allowed texts, a list of one schema, a mapping of fields ("*": any key)."""

_JOBSET: Schema = {
    "failurePolicy": {
        "maxRestarts": int,
        "rules": [
            {
                "name": str,
                "action": ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
                "onJobFailureReasons": [("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")],
            }
        ],
    },
    "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool},
    "replicatedJobs": [{"name": str, "replicas": int, "template": TEMPLATE}],
    "ttlSecondsAfterFinished": int,
}

_PYTORCH_REPLICAS: Schema = {
    "replicas": int,
    "restartPolicy": ("Always", "ExitCode", "Never", "OnFailure"),
    "template": TEMPLATE,
}
_PYTORCH: Schema = {
    "nprocPerNode": str,
    "pytorchReplicaSpecs": {"Master": _PYTORCH_REPLICAS, "Worker": _PYTORCH_REPLICAS},
    "runPolicy": {
        "activeDeadlineSeconds": int,
        "backoffLimit": int,
        "cleanPodPolicy": ("All", "None", "Running"),
        "ttlSecondsAfterFinished": int,
    },
}

_LWS: Schema = {
    "leaderWorkerTemplate": {
        "restartPolicy": ("None", "RecreateGroupAfterStart", "RecreateGroupOnPodRestart"),
        "size": int,
        "workerTemplate": TEMPLATE,
    },
    "replicas": int,
    "startupPolicy": ("LeaderCreated", "LeaderReady"),
}

_VOLCANO: Schema = {
    "maxRetry": int,
    "minAvailable": int,
    "plugins": {"*": [str]},
    "policies": [
        {
            "action": ("AbortJob", "CompleteJob", "RestartJob", "TerminateJob"),
            "event": ("*", "PodEvicted", "PodFailed", "TaskCompleted", "Unknown"),
            "exitCode": int,
        }
    ],
    "queue": str,
    "priorityClassName": str,
    "schedulerName": str,
    "ttlSecondsAfterFinished": int,
    "tasks": [{"name": str, "replicas": int, "template": TEMPLATE}],
}


def _trainer(torch: Schema, processes: Schema) -> dict[str, Schema]:
    runtime = {"kind": ("ClusterTrainingRuntime", "TrainingRuntime"), "name": str}
    return {
        "TrainJob": {"runtimeRef": runtime, "trainer": {"numNodes": int, "numProcPerNode": processes}},
        "TrainingRuntime": {"mlPolicy": {"numNodes": int, "torch": torch}, "template": {"spec": _JOBSET}},
    }


@dataclass(frozen=True)
class Release:
    """One release of an operator: ``kinds`` maps the kinds that a target's file holds to their spec.

    ``source`` is where the fields were read: the models of a package on PyPI, which are made from the
    release's own definitions, or the types of a public repository at a commit.
    """

    target: str
    version: str
    source: str
    kinds: dict[str, Schema]


_COUNT_OR_WORD = frozenset({int, str})
_COUNTED_TORCH: Schema = {"numProcPerNode": _COUNT_OR_WORD}

RELEASES = (
    Release("jobset", "in Trainer 2.0", "PyPI kubeflow-trainer-api 2.0.0", {"JobSet": _JOBSET}),
    Release("jobset", "in Trainer 2.3", "PyPI kubeflow-trainer-api 2.3.0", {"JobSet": _JOBSET}),
    Release("jobset", "0336a8fd9fd3", "kubernetes-sigs/jobset api/jobset/v1alpha2", {"JobSet": _JOBSET}),
    Release("pytorchjob", "1.7", "PyPI kubeflow-training 1.7.0", {"PyTorchJob": _PYTORCH}),
    Release("pytorchjob", "1.8", "PyPI kubeflow-training 1.8.1", {"PyTorchJob": _PYTORCH}),
    Release("pytorchjob", "1.9", "PyPI kubeflow-training 1.9.4", {"PyTorchJob": _PYTORCH}),
    Release("trainjob", "2.0", "PyPI kubeflow-trainer-api 2.0.0", _trainer(_COUNTED_TORCH, _COUNT_OR_WORD)),
    Release("trainjob", "2.1", "PyPI kubeflow-trainer-api 2.1.0", _trainer(_COUNTED_TORCH, _COUNT_OR_WORD)),
    Release("trainjob", "2.2", "PyPI kubeflow-trainer-api 2.2.0", _trainer({}, int)),
    Release("trainjob", "2.3", "PyPI kubeflow-trainer-api 2.3.0", _trainer({}, int)),
    Release(
        "leaderworkerset",
        "024af0845195",
        "kubernetes-sigs/lws api/leaderworkerset/v1",
        {"LeaderWorkerSet": _LWS},
    ),
    Release("volcano", "032c8b66ae90", "volcano-sh/apis pkg/apis/batch/v1alpha1", {"Job": _VOLCANO}),
    # Its API is not public: the one form its users are shown.
    Release(
        "kubebrain",
        "v1",
        "manifests of its users",
        {"TrainingJob": {"replicaSpecs": {"Worker": {"replicas": int, "template": TEMPLATE}}}},
    ),
)
"""Oldest first for each target; the last is the newest that could be read."""


POD_GROUPS: dict[str, Schema] = {
    # volcano-sh/apis pkg/apis/scheduling/v1beta1 at 062ae57e5e0c
    "volcano": {"minMember": int, "queue": str, "priorityClassName": str},
    # kubernetes-sigs/scheduler-plugins apis/scheduling/v1alpha1 at 08079b777f33
    "scheduler-plugins": {"minMember": int},
}
"""``--gang`` → the fields of its PodGroup that the manifests set."""


def faults(value: Any, schema: Schema, path: str = "spec") -> list[str]:
    """What a server of that release would say to ``value``: a line for each fault, none when it takes it."""
    if schema is TEMPLATE:
        return []
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{path} {value!r} is no object"]
        found = []
        for key, item in value.items():
            inner = schema.get(key, schema.get("*"))
            found += (
                [f"unknown field {path}.{key}"] if inner is None else faults(item, inner, f"{path}.{key}")
            )
        return found
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{path} {value!r} is no list"]
        return [line for item in value for line in faults(item, schema[0], f"{path}[]")]
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{path} {value!r} is none of {schema}"]
    types = schema if isinstance(schema, frozenset) else {schema}
    return [] if type(value) in types else [f"{path} {value!r} is of another type"]
