"""Rules of servers that schemas cannot express, for the fields that the manifests set.

Sources: kubernetes pkg/apis/batch/validation and pkg/apis/core/validation; jobset
pkg/webhooks/jobset_webhook.go at 01078527ec43; volcano pkg/webhooks/admission/jobs/validate at 00d063664d64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_REASONS = {
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
}


def of_jobset(name: str, spec: dict[str, Any]) -> Iterator[str]:
    """What JobSet's webhook objects to; it also has a last say on the JobSets that Trainer makes."""
    for job in spec["replicatedJobs"]:
        last = job["template"]["spec"]["completions"] - 1
        pod = f"{name}-{job['name']}-{job['replicas'] - 1}-{last}-abcde"
        if len(pod) > 63 or not _LABEL.fullmatch(pod):
            yield f"pods cannot be called {pod}"
    rules = spec.get("failurePolicy", {}).get("rules", [])
    names = [rule["name"] for rule in rules]
    if len(set(names)) < len(names) or not all(_RULE_NAME.fullmatch(name) for name in names):
        yield "rules of the failure policy have unique names of letters and digits"
    if not {reason for rule in rules for reason in rule["onJobFailureReasons"]} <= _REASONS:
        yield "a reason that Jobs do not fail for"


def of_volcano(name: str, spec: dict[str, Any]) -> Iterator[str]:
    """What Volcano's webhook objects to."""
    tasks = {task["name"]: task["replicas"] for task in spec["tasks"]}
    if len(tasks) < len(spec["tasks"]) or not all(_LABEL.fullmatch(task) for task in tasks):
        yield "tasks have unique names that are labels of DNS"
    if spec["minAvailable"] > sum(tasks.values()):
        yield "minAvailable exceeds the replicas of all tasks"
    if any(len(f"{name}-{task}-{replicas - 1}") > 63 for task, replicas in tasks.items()):
        yield "names of pods are longer than 63 characters"
    if spec.get("maxRetry", 0) < 0 or spec.get("ttlSecondsAfterFinished", 0) < 0:
        yield "maxRetry and ttlSecondsAfterFinished are at least 0"
    codes = [policy["exitCode"] for policy in spec["policies"] if "exitCode" in policy]
    events = [policy["event"] for policy in spec["policies"] if "event" in policy]
    if 0 in codes or len(set(codes)) < len(codes) or len(set(events)) < len(events):
        yield "exit codes and events of policies are given once, and 0 is none"
    if any(("event" in policy) == ("exitCode" in policy) for policy in spec["policies"]):
        yield "a policy has one of event and exitCode"


def of_job(spec: dict[str, Any]) -> Iterator[str]:
    """What the server objects to in a JobSpec."""
    indexed = spec.get("completionMode") == "Indexed"
    if "backoffLimitPerIndex" in spec and not indexed:
        yield "backoffLimitPerIndex needs completionMode Indexed"
    if "maxFailedIndexes" in spec:
        if "backoffLimitPerIndex" not in spec:
            yield "maxFailedIndexes needs backoffLimitPerIndex"
        if spec["maxFailedIndexes"] > spec["completions"]:
            yield "maxFailedIndexes exceeds completions"
    for rule in spec.get("successPolicy", {}).get("rules", []):
        if not indexed:
            yield "successPolicy needs completionMode Indexed"
        if rule.get("succeededCount", 0) > spec["completions"]:
            yield "succeededCount exceeds completions"
        if int(rule.get("succeededIndexes", "0").split("-")[-1]) >= spec["completions"]:
            yield "succeededIndexes are below completions"
    pod = spec["template"]["spec"]
    names = {container["name"] for container in [*pod["containers"], *pod.get("initContainers", [])]}
    if "podFailurePolicy" in spec and pod.get("restartPolicy") != "Never":
        yield "podFailurePolicy needs restartPolicy Never"
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        on_codes = rule.get("onExitCodes", {})
        values = on_codes.get("values", [])
        if on_codes.get("containerName", next(iter(names))) not in names:
            yield f"podFailurePolicy names {on_codes['containerName']}, which is no container"
        if values != sorted(set(values)) or 0 in values:
            yield "exit codes are not ordered, unique and above 0"
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield "a rule has one of onExitCodes and onPodConditions"
    yield from of_pod(pod)


def of_pod(spec: dict[str, Any]) -> Iterator[str]:
    """What the server objects to in a PodSpec."""
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", []):
        for field in term.get("matchFields", []):
            if field["key"] != "metadata.name" or len(field["values"]) != 1:
                yield "matchFields takes metadata.name with one value"
    for toleration in spec.get("tolerations", []):
        if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
            yield "tolerationSeconds needs effect NoExecute"
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            yield "operator Exists takes no value"
    if spec.get("hostNetwork") and spec.get("dnsPolicy") != "ClusterFirstWithHostNet":
        yield "pods on the host's network would not resolve names of the cluster"
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    if len(set(volumes)) < len(volumes) or any(len(set(volume)) != 2 for volume in spec.get("volumes", [])):
        yield "volumes have one name and one source"
    for container in spec["containers"]:
        resources = container.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        named = {**requests, **limits}
        if any(name.startswith("hugepages-") for name in named) and not {"cpu", "memory"} & set(named):
            yield "hugepages need a request for CPUs or memory"
        if any("/" in name and limits.get(name) != requests.get(name, limits.get(name)) for name in named):
            yield "requests of extended resources equal their limits"
        if set(limits) & set(requests) & {"cpu", "memory"}:
            yield "requests are given beside limits of the same resource"
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        if len(set(paths)) < len(paths):
            yield "a mountPath is used twice"
        if not {mount["name"] for mount in container.get("volumeMounts", [])} <= set(volumes):
            yield "a volume that does not exist is mounted"
