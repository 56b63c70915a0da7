"""What Kubernetes knows is checked by its own schemas; custom resources by the fields their APIs have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kubernetes_validate
import pytest

from platform_launch.errors import (
    HangError,
    HardwareError,
    InputError,
    InstallationError,
    LaunchError,
    NodesAbsentError,
    NodesDisagreeError,
    TopologyError,
    UnfitNodeError,
    UsageError,
)
from platform_launch.jobs import render
from platform_launch.jobs.codes import MEND_THE_JOB, TRY_AGAIN
from platform_launch.jobs.job import Rdma, SecretVariable, Volume
from platform_launch.jobs.names import LONGEST_NAME
from platform_launch.supervise import DEFAULT_GRACE_S
from tests.jobs.manifests import KUBERNETES_TARGETS, a_job, documents, pod_templates
from tests.jobs.operators import KUBERNETES, RELEASES, Release, faults

EVERYTHING: dict[str, Any] = {
    "nodes": 3,
    "time_limit_s": 72_000,
    "cpus": 64,
    "memory_gib": 512,
    "rdma": Rdma("rdma/hca_shared_devices_a", 2),
    "volumes": (Volume("data", "/data", read_only=True), Volume("/mnt/fast", "/scratch")),
    "env": (("GREETING", "a b"),),
    "secret_env": (SecretVariable("WANDB_API_KEY", "wandb", "api-key"),),
    "node_selector": (("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),),
    "tolerations": ("nvidia.com/gpu",),
    "namespace": "training",
    "queue": "batch",
    "options": ("--strict",),
    "arguments": ("--lr", "1e-3"),
}

ON_CPU: dict[str, Any] = {"nodes": 1, "gpus_per_node": 0, "cpus": 64, "retries": 0}


def core_objects(target: str, text: str) -> list[dict[str, Any]]:
    """Services and Jobs of a manifest, and its pod templates as Pods."""
    found = []
    for document in documents(text):
        if document["apiVersion"] in ("v1", "batch/v1"):
            found.append(document)
        found += [
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "child"}, "spec": job["spec"]}
            for job in job_templates(document["spec"])
        ]
        found += [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
            for template in pod_templates(document["spec"])
        ]
    return found


def job_templates(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for item in value for found in job_templates(item)]
    if not isinstance(value, dict):
        return []
    own = [value["template"] for key in ("template",) if "completions" in value.get(key, {}).get("spec", {})]
    return own + [found for item in value.values() for found in job_templates(item)]


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
            }
            assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
            assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_codes_that_nothing_but_a_mended_job_helps_are_those_of_the_errors() -> None:
    families = (UsageError, TopologyError, InputError, InstallationError, NodesDisagreeError)
    assert [family.exit_code for family in families] == list(MEND_THE_JOB) == [64, 65, 66, 67, 76]
    again = (HardwareError, NodesAbsentError, HangError, UnfitNodeError)
    assert [family.exit_code for family in again] == list(TRY_AGAIN) == [69, 75, 77, 78]


def test_every_error_says_whether_another_attempt_helps() -> None:
    """70 is a fault of the launcher itself: nobody knows, so it counts as an attempt."""
    codes = {family.exit_code for family in LaunchError.__subclasses__()}
    assert codes - {*MEND_THE_JOB, *TRY_AGAIN, LaunchError.exit_code} == set()


def pod_rules(target: str) -> list[dict[str, Any]]:
    objects = core_objects(target, render(a_job(nodes=4, retries=2), target))
    (job,) = [item for item in objects if item["kind"] == "Job"]
    rules: list[dict[str, Any]] = job["spec"]["podFailurePolicy"]["rules"]
    return rules


@pytest.mark.parametrize("target", ["kubernetes", "jobset", "trainjob"])
def test_a_job_fails_at_once_on_our_codes_and_does_not_count_a_preemption(target: str) -> None:
    rules = pod_rules(target)
    assert rules[0] == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [*MEND_THE_JOB]}}
    ignored = [rule for rule in rules if rule["action"] == "Ignore"]
    assert [rule.get("onPodConditions") for rule in ignored] == [
        [{"type": "DisruptionTarget", "status": "True"}],
        None,
    ]
    assert ignored[1]["onExitCodes"]["values"] == [143]


@pytest.mark.parametrize("target", ["kubernetes", "jobset", "trainjob"])
def test_one_preemption_costs_no_retry_whatever_the_number_of_nodes(target: str) -> None:
    """One pod is evicted (143 and DisruptionTarget), its three peers end with 143: the whole run's code."""
    rules = pod_rules(target)
    evicted = Ended(143, disrupted=True)
    assert [verdict(rules, pod) for pod in (evicted, Ended(143), Ended(143), Ended(143))] == ["Ignore"] * 4
    assert verdict(rules, Ended(1)) == "Count"
    assert verdict(rules, Ended(69)) == verdict(rules, Ended(75)) == verdict(rules, Ended(137)) == "Count"
    assert [verdict(rules, Ended(code)) for code in MEND_THE_JOB] == ["FailJob"] * len(MEND_THE_JOB)


@dataclass(frozen=True)
class Ended:
    """A pod whose container ended."""

    code: int
    disrupted: bool = False


def verdict(rules: list[dict[str, Any]], pod: Ended) -> str:
    """What the Job controller makes of a failed pod: the first rule that fits, else it counts."""
    for rule in rules:
        if pod.code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
        if pod.disrupted and any(
            pattern == {"type": "DisruptionTarget", "status": "True"}
            for pattern in rule.get("onPodConditions", [])
        ):
            return str(rule["action"])
    return "Count"


def test_a_plain_job_counts_pods_so_its_retries_are_times_the_nodes() -> None:
    job = documents(render(a_job(nodes=4, retries=2), "kubernetes"))[1]
    assert job["spec"]["backoffLimit"] == 8
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_a_jobset_starts_again_as_a_whole_but_not_on_our_codes() -> None:
    (document,) = documents(render(a_job(retries=2), "jobset"))
    policy = document["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 2
    assert policy["rules"][0]["action"] == "FailJobSet"
    assert document["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0


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


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_a_preempted_pytorchjob_is_never_out_of_retries_at_once(retries: int) -> None:
    """training-operator: a pod that failed ends the job where 1 exceeds backoffLimit, whatever ended it."""
    (document,) = documents(render(a_job(retries=retries), "pytorchjob"))
    assert document["spec"]["runPolicy"]["backoffLimit"] == max(1, retries)
    policies = {group["restartPolicy"] for group in document["spec"]["pytorchReplicaSpecs"].values()}
    assert policies == {"ExitCode"}


def restarts_of_volcano(spec: dict[str, Any], code: int) -> int:
    """How often Volcano starts a job again whose pods always end with ``code`` (its restarting.go).

    The first policy that fits decides; a restart raises retryCount, and at maxRetry the job has failed.
    """
    policy = next(
        policy
        for policy in spec["policies"]
        if code == policy.get("exitCode") or policy.get("event") == "PodFailed"
    )
    if policy["action"] != "RestartJob":
        return 0
    count, restarts = 0, 0
    while (count := count + 1) < spec.get("maxRetry", 3):
        restarts += 1
    return restarts


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_volcano_starts_again_as_often_as_was_asked_but_not_on_our_codes(retries: int) -> None:
    (document,) = documents(render(a_job(retries=retries), "volcano"))
    assert restarts_of_volcano(document["spec"], 1) == retries
    assert restarts_of_volcano(document["spec"], 75) == retries
    assert {restarts_of_volcano(document["spec"], code) for code in MEND_THE_JOB} == {0}
    assert restarts_of_volcano(document["spec"], 143) == (retries or 2)


def test_a_queue_becomes_kueues_label_or_volcanos_field() -> None:
    for target in ("kubernetes", "jobset", "pytorchjob", "trainjob", "leaderworkerset"):
        document = documents(render(a_job(queue="batch"), target))[-1]
        assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "batch"}
    (document,) = documents(render(a_job(queue="batch"), "volcano"))
    assert document["spec"]["queue"] == "batch"
