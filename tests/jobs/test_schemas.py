"""What Kubernetes knows is checked by its own schemas; custom resources by the fields their APIs have."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from platform_launch.jobs import render
from platform_launch.jobs.job import Rdma, RunAs, SecretVariable, Toleration, Volume
from platform_launch.jobs.names import LONGEST_NAME
from platform_launch.supervise import DEFAULT_GRACE_S
from tests.jobs import server_rules
from tests.jobs.manifests import KUBERNETES_TARGETS, a_job, documents, job_specs, pod_templates
from tests.jobs.operators import KUBERNETES, RELEASES, Release, faults

EVERYTHING: dict[str, Any] = {
    "nodes": 3,
    "time_limit_s": 72_000,
    "cpus": 64,
    "memory_gib": 512,
    "rdma": (Rdma("rdma/hca_shared_devices_a", 2), Rdma("rdma/hca_shared_devices_b")),
    "resources": (("hugepages-2Mi", "2Gi"), ("vpc.amazonaws.com/efa", "4")),
    "volumes": (
        Volume("data", "/data", read_only=True),
        Volume("/mnt/fast", "/scratch"),
        Volume("nas.example:/export/a", "/nfs"),
        Volume("secret/hub", "/hub"),
        Volume("configmap/settings", "/settings"),
    ),
    "env": (("GREETING", "a b"),),
    "secret_env": (SecretVariable("WANDB_API_KEY", "wandb", "api-key"),),
    "node_selector": (("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),),
    "tolerations": (Toleration("nvidia.com/gpu"), Toleration("team", "a", "NoSchedule")),
    "exclude": ("gn1", "ip-10-0-0-1." + "x" * 60 + ".example"),
    "labels": (("kueue.x-k8s.io/priority-class", "high"),),
    "annotations": (("kueue.x-k8s.io/podset-required-topology", "cloud.example/rack"),),
    "image_pull_secrets": ("registry",),
    "service_account": "trainer",
    "priority_class": "high",
    "scheduler": "other",
    "host_network": True,
    "run_as": RunAs(1000, 2000),
    "patch": {"spec": {"terminationGracePeriodSeconds": 300}},
    "ttl_s": 60,
    "namespace": "training",
    "queue": "batch",
    "options": ("--strict",),
    "arguments": ("--lr", "1e-3"),
}

ON_CPU: dict[str, Any] = {"nodes": 1, "gpus_per_node": 0, "cpus": 64, "retries": 0}


RESTRICTED: dict[str, Any] = {
    "security": "restricted",
    "volumes": (Volume("data", "/data"),),
    "resources": (("hugepages-2Mi", "2Gi"),),
}


def rule(**changes: Any) -> dict[str, Any]:
    codes = {"containerName": "training", "operator": "In", "values": [1], **changes}
    return {"action": "Ignore", "onExitCodes": codes}


def nodes_but(*names: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "NotIn", "values": list(names)}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def core_objects(target: str, text: str) -> list[dict[str, Any]]:
    """Services and Jobs of a manifest, and its pod templates as Pods."""
    found = []
    for document in documents(text):
        if document["apiVersion"] in ("v1", "batch/v1"):
            found.append(document)
        found += [
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "child"}, "spec": spec}
            for spec in job_specs(document["spec"])
        ]
        found += [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                **template,
                "metadata": {**template.get("metadata", {}), "name": "pod"},
            }
            for template in pod_templates(document["spec"])
        ]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["least", "everything"])
def test_kubernetes_own_schemas_accept_every_object(
    target: str, values: dict[str, Any], version: str
) -> None:
    objects = core_objects(target, render(a_job(**values), target))
    assert objects
    for item in objects:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
def test_jobs_with_spares_need_a_success_policy_that_kubernetes_1_31_has(target: str) -> None:
    for item in core_objects(target, render(a_job(spares=1), target)):
        kubernetes_validate.validate(item, KUBERNETES[-1], strict=True)
        if item["kind"] == "Job":
            assert item["spec"]["successPolicy"] == {"rules": [{"succeededCount": 2}]}
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(item, "1.29", strict=True)


@pytest.mark.parametrize("target", ["kubernetes", "jobset", "leaderworkerset"])
@pytest.mark.parametrize("values", [{"spares": 1}, {"min_nodes": 1}, {"spares": 1, "min_nodes": 1}], ids=str)
def test_jobs_that_may_lose_nodes_are_valid_too(target: str, values: dict[str, Any]) -> None:
    for item in core_objects(target, render(a_job(**values), target)):
        kubernetes_validate.validate(item, KUBERNETES[-1], strict=True)
        if item["kind"] in ("Job", "Pod"):
            rules = server_rules.of_job if item["kind"] == "Job" else server_rules.of_pod
            assert list(rules(item["spec"])) == []


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
@pytest.mark.parametrize(
    "values", [{}, EVERYTHING, ON_CPU, RESTRICTED], ids=["least", "all", "CPU", "restricted"]
)
def test_rules_beyond_the_schemas_hold_too(target: str, values: dict[str, Any]) -> None:
    for item in core_objects(target, render(a_job(**values), target)):
        if item["kind"] in ("Job", "Pod"):
            rules = server_rules.of_job if item["kind"] == "Job" else server_rules.of_pod
            assert list(rules(item["spec"])) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"completionMode": "NonIndexed"}, "needs completionMode Indexed"),
        ({"backoffLimitPerIndex": None}, "maxFailedIndexes needs"),
        ({"maxFailedIndexes": 9}, "maxFailedIndexes exceeds"),
        ({"successPolicy": {"rules": [{"succeededCount": 4}]}}, "succeededCount exceeds"),
        ({"podFailurePolicy": {"rules": [rule(containerName="pytorch")]}}, "which is no container"),
        ({"podFailurePolicy": {"rules": [rule(values=[3, 1])]}}, "not ordered"),
        ({"podFailurePolicy": {"rules": [{"action": "Ignore"}]}}, "one of onExitCodes and"),
        ({"template.restartPolicy": "OnFailure"}, "needs restartPolicy Never"),
        ({"template.hostNetwork": True}, "would not resolve"),
        ({"template.volumes": []}, "a volume that does not exist"),
        ({"template.affinity": nodes_but("gn1", "gn2")}, "with one value"),
        ({"template.tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "needs effect NoExecute"),
    ],
)
def test_the_rules_refuse_what_the_server_refuses(change: dict[str, Any], words: str) -> None:
    (spec,) = job_specs(documents(render(a_job(), "kubernetes")))
    for path, value in change.items():
        part = spec["template"]["spec"] if path.startswith("template.") else spec
        key = path.removeprefix("template.")
        part.pop(key, None) if value is None else part.update({key: value})
    assert any(words in found for found in server_rules.of_job(spec))


def webhook_faults(target: str, values: dict[str, Any]) -> list[str]:
    """What the operator's webhook says to the first document."""
    document = documents(render(a_job(**values), target))[0]
    name, spec = document["metadata"]["name"], document["spec"]
    if target == "volcano":
        return list(server_rules.of_volcano(name, spec))
    return list(server_rules.of_jobset(name, spec["template"]["spec"] if target == "trainjob" else spec))


LARGEST: dict[str, Any] = {"name": "a" * LONGEST_NAME, "nodes": 9999}


@pytest.mark.parametrize("target", ["jobset", "trainjob", "volcano"])
@pytest.mark.parametrize("values", [{}, EVERYTHING, ON_CPU, LARGEST], ids=["least", "all", "CPU", "largest"])
def test_the_webhooks_of_operators_have_nothing_to_object_to(target: str, values: dict[str, Any]) -> None:
    assert webhook_faults(target, values) == []


@pytest.mark.parametrize(
    ("target", "change", "words"),
    [
        ("jobset", {"failurePolicy": {"rules": [{"name": "1st", "onJobFailureReasons": []}]}}, "letters"),
        (
            "jobset",
            {"failurePolicy": {"rules": [{"name": "a", "onJobFailureReasons": ["Evicted"]}]}},
            "do not fail for",
        ),
        ("volcano", {"minAvailable": 3}, "minAvailable exceeds"),
        ("volcano", {"policies": [{"exitCode": 0, "action": "RestartJob"}]}, "0 is none"),
        ("volcano", {"policies": [{"exitCode": 1, "event": "*", "action": "RestartJob"}]}, "one of event"),
        ("volcano", {"maxRetry": -1}, "at least 0"),
    ],
)
def test_the_rules_of_webhooks_refuse_what_those_refuse(
    target: str, change: dict[str, Any], words: str
) -> None:
    document = documents(render(a_job(), target))[0]
    rules = server_rules.of_volcano if target == "volcano" else server_rules.of_jobset
    (found,) = rules("demo", {**document["spec"], **change})
    assert words in found
    (longer,) = rules("a" * 63, document["spec"])
    assert "pods" in longer


def test_the_schemas_would_notice_a_misspelled_field() -> None:
    (service, _job) = documents(render(a_job(), "kubernetes"))
    service["spec"]["publishNotReadyAdresses"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, KUBERNETES[0], strict=True)


def custom_resources(target: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        document
        for document in documents(render(a_job(**values), target))
        if document["apiVersion"] not in ("v1", "batch/v1")
    ]


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: f"{release.target} {release.version}")
@pytest.mark.parametrize("values", [{}, EVERYTHING, ON_CPU], ids=["least", "everything", "on CPUs"])
def test_every_release_of_an_operator_takes_what_is_written_for_it(
    release: Release, values: dict[str, Any]
) -> None:
    resources = custom_resources(release.target, values)
    assert {document["kind"] for document in resources} == set(release.kinds)
    for document in resources:
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        assert faults(document["spec"], release.kinds[document["kind"]]) == []


def test_the_table_of_releases_has_every_target_of_an_operator() -> None:
    assert {release.target for release in RELEASES} == {*KUBERNETES_TARGETS} - {"kubernetes"}


@pytest.mark.parametrize(
    ("target", "kind", "change", "fault"),
    [
        # What was removed or never there is noticed, with the path that the server would name.
        ("trainjob", "TrainingRuntime", ("mlPolicy", "torch", "numProcPerNode"), "unknown field"),
        ("jobset", "JobSet", ("network", "enableDNSHostNames"), "unknown field"),
        ("volcano", "Job", ("minAvailable",), "is of another type"),
        ("pytorchjob", "PyTorchJob", ("runPolicy", "cleanPodPolicy"), "is none of"),
    ],
)
def test_the_table_notices_what_a_release_would_refuse(
    target: str, kind: str, change: tuple[str, ...], fault: str
) -> None:
    newest = [release for release in RELEASES if release.target == target][-1]
    spec = next(document for document in custom_resources(target, {}) if document["kind"] == kind)["spec"]
    inner = spec
    for key in change[:-1]:
        inner = inner[key]
    inner[change[-1]] = "auto"
    (found,) = faults(spec, newest.kinds[kind])
    assert fault in found
    assert ".".join(("spec", *change)) in found


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_every_pod_carries_what_users_forget(target: str) -> None:
    for document in documents(render(a_job(**EVERYTHING), target)):
        for template in pod_templates(document["spec"]):
            pod, (container,) = template["spec"], template["spec"]["containers"]
            assert pod["terminationGracePeriodSeconds"] >= DEFAULT_GRACE_S + 10
            assert pod["enableServiceLinks"] is False
            assert pod["automountServiceAccountToken"] is False
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Gi"}
            assert volumes[mounts["/data"]]["persistentVolumeClaim"]["claimName"] == "data"
            assert container["resources"]["limits"] == {
                "nvidia.com/gpu": 8,
                "cpu": 64,
                "memory": "512Gi",
                "rdma/hca_shared_devices_a": 2,
                "rdma/hca_shared_devices_b": 1,
                "hugepages-2Mi": "2Gi",
                "vpc.amazonaws.com/efa": "4",
            }
            assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
            assert pod["tolerations"][:2] == [
                {"key": "nvidia.com/gpu", "operator": "Exists"},
                {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
            ]
            assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
            assert template["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"


def test_a_jobset_of_the_longest_name_has_no_coordinator_whose_label_would_be_too_long() -> None:
    """JobSet labels its pods with ``<name>-node-0-0.<name>``: 101 characters, where 63 are allowed."""
    (jobset,) = documents(render(a_job(name="a" * LONGEST_NAME), "jobset"))
    assert "coordinator" not in jobset["spec"]
    (runtime, _job) = documents(render(a_job(name="a" * LONGEST_NAME), "trainjob"))
    assert "coordinator" not in runtime["spec"]["template"]["spec"]


def test_without_gpus_an_operator_is_told_of_one_process() -> None:
    """Left out, Trainer would set the number of CPUs."""
    (_runtime, job) = documents(render(a_job(**ON_CPU), "trainjob"))
    assert job["spec"]["trainer"] == {"numNodes": 1, "numProcPerNode": 1}
    (document,) = documents(render(a_job(**ON_CPU), "pytorchjob"))
    assert document["spec"]["nprocPerNode"] == "1"


def test_a_queue_becomes_kueues_label_or_volcanos_field() -> None:
    for target in ("kubernetes", "jobset", "pytorchjob", "trainjob", "leaderworkerset"):
        document = documents(render(a_job(queue="batch"), target))[-1]
        assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "batch"}
    (document,) = documents(render(a_job(queue="batch"), "volcano"))
    assert document["spec"]["queue"] == "batch"
