"""Rules of the API server that schemas cannot express, for the fields that the manifests set.

Source: kubernetes pkg/apis/batch/validation and pkg/apis/core/validation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


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
