"""What Kubernetes knows is checked by its own schemas; custom resources by the fields their APIs have."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from platform_launch.errors import (
    HardwareError,
    InputError,
    InstallationError,
    LaunchError,
    NodesAbsentError,
    NodesDisagreeError,
    TopologyError,
    UsageError,
)
from platform_launch.jobs import render
from platform_launch.jobs.codes import MEND_THE_JOB, TRY_AGAIN
from platform_launch.jobs.job import Rdma, SecretVariable, Volume
from platform_launch.supervise import DEFAULT_GRACE_S
from tests.jobs.manifests import KUBERNETES_TARGETS, a_job, documents, pod_templates

OLDEST = "1.29"  # earlier schemas demand onPodConditions in every rule, against their own description
VERSIONS = (OLDEST, kubernetes_validate.latest_version())

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

# Fields outside pod and Job templates, which are checked by Kubernetes' own schemas. From the API types of
# jobset v1alpha2, training-operator v1.9, trainer v1alpha1, lws v1 and volcano v1alpha1.
KNOWN_FIELDS: dict[str, set[str]] = {
    "jobset": {
        "network.enableDNSHostnames",
        "network.publishNotReadyAddresses",
        "coordinator.replicatedJob",
        "coordinator.jobIndex",
        "coordinator.podIndex",
        "failurePolicy.maxRestarts",
        "failurePolicy.rules.name",
        "failurePolicy.rules.action",
        "failurePolicy.rules.onJobFailureReasons",
        "replicatedJobs.name",
        "replicatedJobs.replicas",
    },
    "pytorchjob": {
        "nprocPerNode",
        "runPolicy.cleanPodPolicy",
        "runPolicy.backoffLimit",
        "runPolicy.activeDeadlineSeconds",
        "pytorchReplicaSpecs.Master.replicas",
        "pytorchReplicaSpecs.Master.restartPolicy",
        "pytorchReplicaSpecs.Worker.replicas",
        "pytorchReplicaSpecs.Worker.restartPolicy",
    },
    "trainjob": {
        "runtimeRef.kind",
        "runtimeRef.name",
        "trainer.numNodes",
        "trainer.numProcPerNode",
        "mlPolicy.numNodes",
        "mlPolicy.torch.numProcPerNode",
        "template.spec.failurePolicy.maxRestarts",
        "template.spec.failurePolicy.rules.name",
        "template.spec.failurePolicy.rules.action",
        "template.spec.failurePolicy.rules.onJobFailureReasons",
        "template.spec.replicatedJobs.name",
        "template.spec.replicatedJobs.replicas",
    },
    "leaderworkerset": {
        "replicas",
        "startupPolicy",
        "leaderWorkerTemplate.size",
        "leaderWorkerTemplate.restartPolicy",
    },
    "volcano": {
        "minAvailable",
        "schedulerName",
        "queue",
        "maxRetry",
        "plugins.env",
        "plugins.svc",
        "plugins.pytorch",
        "policies.event",
        "policies.exitCode",
        "policies.action",
        "tasks.name",
        "tasks.replicas",
    },
    "kubebrain": {"replicaSpecs.Worker.replicas"},
}


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


def fields(value: Any, path: str = "") -> set[str]:
    """Dotted paths to all leaves outside of pod and Job templates."""
    if isinstance(value, list):
        inner = set().union(*(fields(item, path) for item in value)) if value else set()
        return inner or {path}
    if not isinstance(value, dict):
        return {path}
    found: set[str] = set()
    for key, item in value.items():
        is_template = isinstance(item, dict) and {"containers", "completions"} & item.get("spec", {}).keys()
        if not is_template:
            found |= fields(item, f"{path}.{key}" if path else key)
    return found


@pytest.mark.parametrize("version", VERSIONS)
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
        kubernetes_validate.validate(service, OLDEST, strict=True)


@pytest.mark.parametrize("target", list(KNOWN_FIELDS))
def test_a_custom_resource_holds_fields_of_its_api_only(target: str) -> None:
    used: set[str] = set()
    for document in documents(render(a_job(**EVERYTHING), target)):
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        used |= fields(document["spec"])
    assert used == KNOWN_FIELDS[target]


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_every_pod_carries_what_users_forget(target: str) -> None:
    for document in documents(render(a_job(**EVERYTHING), target)):
        for template in pod_templates(document["spec"]):
            pod, (container,) = template["spec"], template["spec"]["containers"]
            assert pod["terminationGracePeriodSeconds"] >= DEFAULT_GRACE_S + 10
            assert pod["enableServiceLinks"] is False
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
    assert [HardwareError.exit_code, NodesAbsentError.exit_code] == list(TRY_AGAIN) == [69, 75]


def test_every_error_says_whether_another_attempt_helps() -> None:
    """70 is a fault of the launcher itself: nobody knows, so it counts as an attempt."""
    codes = {family.exit_code for family in LaunchError.__subclasses__()}
    assert codes - {*MEND_THE_JOB, *TRY_AGAIN} == set()


def test_a_job_fails_at_once_on_our_codes_and_ignores_disruptions() -> None:
    job = documents(render(a_job(nodes=4, retries=2), "kubernetes"))[1]
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0] == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [*MEND_THE_JOB]}}
    assert rules[1]["action"] == "Ignore"
    assert job["spec"]["backoffLimit"] == 8
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_a_jobset_starts_again_as_a_whole_but_not_on_our_codes() -> None:
    (document,) = documents(render(a_job(retries=2), "jobset"))
    policy = document["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 2
    assert policy["rules"][0]["action"] == "FailJobSet"
    assert document["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize(("retries", "action"), [(2, "RestartJob"), (0, "TerminateJob")])
def test_volcano_ends_on_our_codes_before_it_thinks_of_restarting(retries: int, action: str) -> None:
    (document,) = documents(render(a_job(retries=retries), "volcano"))
    policies = document["spec"]["policies"]
    ending, again = policies[:-2], policies[-2:]
    assert [policy["exitCode"] for policy in ending] == list(MEND_THE_JOB)
    assert {policy["action"] for policy in ending} == {"TerminateJob"}
    assert {policy["action"] for policy in again} == {action}
    assert document["spec"].get("maxRetry", 0) == retries


def test_a_queue_becomes_kueues_label_or_volcanos_field() -> None:
    for target in ("kubernetes", "jobset", "pytorchjob", "trainjob", "leaderworkerset"):
        document = documents(render(a_job(queue="batch"), target))[-1]
        assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "batch"}
    (document,) = documents(render(a_job(queue="batch"), "volcano"))
    assert document["spec"]["queue"] == "batch"
