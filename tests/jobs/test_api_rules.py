"""Values by the rules of the servers that read them: refused here is what they refuse, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from platform_launch.cli import main
from platform_launch.errors import InputError
from platform_launch.jobs import render
from platform_launch.jobs.description import Value, to_job
from platform_launch.jobs.job import Rdma, SecretVariable, Volume
from tests.jobs.manifests import ENTRYPOINT, IMAGE, KUBERNETES_TARGETS, a_job, documents

LABEL, SUBDOMAIN = "a" * 63, ".".join(["a" * 49] * 5)

TAKEN: list[tuple[str, Value]] = [
    ("namespace", LABEL),
    ("namespace", "team-1"),
    ("queue", "team.a-queue"),
    ("image", "taehv"),
    ("image", "localhost:5000/team/taehv:v1.0_RC-2"),
    ("image", "Registry.Example/a__b/c-d.e@sha256:" + "0f" * 32),
    ("image", "[fd00::1]:5000/a/b:1"),
    ("rdma", ["rdma/hca_shared_devices_a=2"]),
    ("rdma", ["nvidia.com/mlnxnics"]),
    ("rdma", ["vpc.amazonaws.com/efa=32"]),
    (
        "tolerations",
        ["nvidia.com/gpu", "Dedicated_1.x", "a=b", "a:NoExecute", "a=b:NoSchedule", "a=:NoSchedule"],
    ),
    ("exclude", ["a" * 60 + "." + "b" * 60 + ".example"]),
    ("gpu_resource", "amd.com/gpu"),
    ("gpu_resource", "huawei.com/Ascend910"),
    ("gpu_resource", "nvidia.com/mig-1g.10gb"),
    ("resources", {"hugepages-2Mi": "512Mi", "hugepages-1Gi": "2Gi", "ephemeral-storage": "1Ti"}),
    ("rdma", ["rdma/a=2", "rdma/b"]),
    ("labels", {"a/b": "c", "plain": ""}),
    ("annotations", {"a/b": "any text: {}\nat all"}),
    ("image_pull_secrets", ["registry.example"]),
    ("run_as", "1000"),
    ("run_as", "0:0"),
    ("volumes", ["nas.example:/export:/data:ro", "secret/s:/s", "configmap/c:/c:ro"]),
    ("node_selector", {"a/" + "B" * 63: "b" * 63, "zone": ""}),
    ("secret_env", {"TOKEN": "my.secret-1:_.data"}),
    ("secret_env", {"TOKEN": "s:.dockerconfigjson"}),
    ("volumes", ["my.claim:/data", "/mnt/a..b:/scratch/..x/"]),
]
REFUSED: list[tuple[str, Value]] = [
    ("namespace", "a.b"),
    ("namespace", "a" * 64),
    ("namespace", "Team"),
    ("namespace", "a-"),
    ("queue", "foo/bar"),
    ("queue", "a" * 64),
    ("queue", "Batch"),
    ("queue", "a..b"),
    ("queue", "gpu,debug"),
    ("image", "registry.example/Team/Taehv"),
    ("image", "a/b:1:2"),
    ("image", "a/b:"),
    ("image", "a//b"),
    ("image", "a/b:" + "t" * 129),
    ("image", "a@sha256:0f"),
    ("image", "a@sha256:" + "0f" * 16),  # a whole digest of another kind
    ("image", "a@sha256:" + "0F" * 32),
    ("image", "https://registry.example/a"),
    ("rdma", ["rdma"]),
    ("rdma", ["cpu"]),
    ("rdma", ["kubernetes.io/rdma"]),
    ("rdma", ["node.kubernetes.io/rdma"]),
    ("rdma", ["requests.rdma/hca"]),
    ("rdma", ["rdma/" + "a" * 64]),
    ("rdma", ["a" * 245 + "/hca"]),
    ("rdma", ["Rdma/hca"]),
    ("rdma", ["rdma/hca/b"]),
    ("rdma", ["nvidia.com/gpu=2"]),
    ("rdma", ["rdma/hca=0"]),
    ("tolerations", ["nvidia.com/gpu=present:Never"]),
    ("tolerations", ["nvidia.com/gpu=a b"]),
    ("tolerations", ["=a"]),
    ("tolerations", ["a" * 64]),
    ("tolerations", ["a/b/c"]),
    ("tolerations", ["A.com/b"]),
    ("exclude", ["a" * 254]),
    ("exclude", ["a b"]),
    ("gpu_resource", "gpu"),
    ("resources", {"cpu": "1"}),
    ("resources", {"nvidia.com/gpu": "1"}),
    ("resources", {"hugepages-2MB": "1Gi"}),
    ("resources", {"rdma/a": "-1"}),
    ("resources", {"rdma/a": "1.5.0"}),
    ("rdma", ["rdma/a", "rdma/a=2"]),
    ("labels", {"a/b": "c d"}),
    ("annotations", {"a b": "c"}),
    ("image_pull_secrets", ["Registry"]),
    ("service_account", "a/b"),
    ("security", "privileged"),
    ("run_as", "root"),
    ("run_as", "1000:"),
    ("gang", "kueue"),
    ("runtime", "Runtime/a"),
    ("runtime", "TrainingRuntime/A"),
    ("volumes", ["nas.example:export:/data"]),
    ("volumes", ["a:b:/c:/data"]),
    ("volumes", ["secret/:/data"]),
    ("volumes", ["pod/a:/data"]),
    ("node_selector", {"a" * 64: "b"}),
    ("node_selector", {"/a": "b"}),
    ("node_selector", {"a/": "b"}),
    ("node_selector", {"zone": "b" * 64}),
    ("node_selector", {"zone": "a/b"}),
    ("node_selector", {"zone": "-a"}),
    ("secret_env", {"TOKEN": "My_Secret:key"}),
    ("secret_env", {"TOKEN": "a..b:key"}),
    ("secret_env", {"TOKEN": "a.-b:key"}),
    ("secret_env", {"TOKEN": "secret:a/b"}),
    ("secret_env", {"TOKEN": "secret:.."}),
    ("secret_env", {"TOKEN": "secret:..data"}),
    ("secret_env", {"TOKEN": "secret:."}),
    ("secret_env", {"TOKEN": "secret:"}),
    ("secret_env", {"TOKEN": "secret:" + "k" * 254}),
    ("volumes", ["/mnt/../etc:/data"]),
    ("volumes", ["/mnt/..:/data"]),
    ("volumes", ["claim:/data/../etc"]),
    ("volumes", ["claim:data"]),
    ("volumes", ["a..b:/data"]),
    ("volumes", ["one:/data", "two:/data"]),
    ("volumes", ["one:/data", "two://data/."]),
    ("volumes", ["one:/dev"]),
    ("volumes", ["one:/proc/"]),
    ("volumes", ["one:/./"]),
]


def rendered(key: str, value: Value, target: str = "jobset") -> str:
    description: dict[str, Value] = {"name": "demo", "entrypoint": ENTRYPOINT, "image": IMAGE, key: value}
    return render(to_job(description, 60), target)


@pytest.mark.parametrize(("key", "value"), TAKEN, ids=str)
def test_what_the_servers_take_is_taken(key: str, value: Value) -> None:
    assert rendered(key, value)


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=lambda part: str(part)[:40])
def test_what_the_servers_would_refuse_is_refused_before(key: str, value: Value) -> None:
    with pytest.raises(InputError) as caught:
        rendered(key, value)
    assert "expected" in caught.value.message


@pytest.mark.parametrize("target", [*KUBERNETES_TARGETS])
def test_a_queue_is_checked_where_it_becomes_a_label_or_a_name(target: str) -> None:
    if target == "kubebrain":  # cannot express a queue, and reports that
        assert "foo/bar" not in render(a_job(queue="foo/bar"), target)
        return
    with pytest.raises(InputError, match="queue 'foo/bar'"):
        render(a_job(queue="foo/bar"), target)


def test_a_slurm_partition_may_be_a_list_of_several() -> None:
    assert "#SBATCH --partition=gpu_1,Debug\n" in render(a_job(queue="gpu_1,Debug"), "slurm")


@pytest.mark.parametrize(
    "flags",
    [
        ["--namespace", "a.b"],
        ["--queue", "foo/bar"],
        ["--rdma", "nvidia.com/gpu=2"],
        ["--volume", "/mnt/../etc:/data"],
        ["--secret-env", "TOKEN=Secret:key"],
    ],
)
def test_check_refuses_them_as_any_flag(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", "--name", "demo", "--image", "a/b:1", "--check", *flags]) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")


def test_the_gpus_stay_as_many_as_were_asked_for() -> None:
    limits: list[Any] = [
        document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        for document in documents(render(a_job(rdma=(Rdma("rdma/hca", 2),)), "kubernetes"))
        if document["kind"] == "Job"
    ]
    assert limits == [{"nvidia.com/gpu": 8, "rdma/hca": 2}]


def test_long_names_of_other_objects_are_taken_to_the_last_character() -> None:
    assert SecretVariable("TOKEN", SUBDOMAIN, "k" * 253).secret == SUBDOMAIN
    assert Volume(SUBDOMAIN, "/data").source == SUBDOMAIN
    with pytest.raises(InputError):
        SecretVariable("TOKEN", "a" * 254, "key")
