"""What a cluster wants of its pods besides the job: identity, security, scheduling, resources."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform_launch.jobs import TARGETS, advice, render, unused_notes
from platform_launch.jobs.description import KEYS
from platform_launch.jobs.job import Rdma, RunAs, Runtime, Toleration, Volume
from tests.jobs.api_server import pod_security_violation
from tests.jobs.controllers import CONTROLLERS
from tests.jobs.manifests import IMAGE, KUBERNETES_TARGETS, a_job, documents, pod_templates
from tests.jobs.operators import POD_GROUPS, faults
from tests.lab.needs import Need

ROOT = Path(__file__).resolve().parents[2]
ISTIO = "sidecar.istio.io/inject"


def restricted(user: int, group: int) -> list[str]:
    """The start of a command that runs as this user, without capabilities and ways to get them."""
    namespace = ["unshare", "--user", f"--map-user={user}", f"--map-group={group}"]
    return [*namespace, "setpriv", "--no-new-privs"]


def why_no_user_namespace() -> str:
    made = subprocess.run([*restricted(1000, 1000), "true"], capture_output=True, check=False)
    return f"needs a user namespace: {made.stderr.decode().strip()}" if made.returncode else ""


requires_user_namespace = Need("a user namespace", why_no_user_namespace).mark


def pods(target: str, **values: Any) -> list[dict[str, Any]]:
    return pod_templates(documents(render(a_job(**values), target)))


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_istio_stays_out_of_the_pods_of_kubeflow_and_of_nobody_elses(target: str) -> None:
    for template in pods(target):
        marks = template.get("metadata", {}).get("annotations", {})
        assert marks == ({ISTIO: "false"} if target in ("pytorchjob", "trainjob") else {})
    for template in pods(target, annotations=((ISTIO, "true"), ("team", "a"))):
        assert template["metadata"]["annotations"] == {ISTIO: "true", "team": "a"}


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_labels_and_annotations_are_on_the_job_and_on_its_pods(target: str) -> None:
    """Kueue reads its priority and topology, JobSet and LeaderWorkerSet their exclusive topology there."""
    marks = (("alpha.jobset.sigs.k8s.io/exclusive-topology", "rack"),)
    job = a_job(labels=(("kueue.x-k8s.io/priority-class", "high"),), annotations=marks)
    for document in documents(render(job, target)):
        assert document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
        assert document["metadata"]["annotations"] == dict(marks)
        for template in pod_templates(document["spec"]):
            assert template["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
            assert dict(marks).items() <= template["metadata"]["annotations"].items()


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_a_restricted_pod_meets_the_restricted_level_and_an_ordinary_one_the_baseline(target: str) -> None:
    claim = (Volume("data", "/data"),)
    for values, level, fits in (
        ({"security": "restricted", "volumes": claim}, "restricted", True),
        ({"security": "restricted", "run_as": RunAs(4000, 4000)}, "restricted", True),
        ({"volumes": claim}, "baseline", True),
        ({"volumes": (Volume("nas:/a", "/data"),)}, "baseline", True),
        ({}, "restricted", False),
        ({"rdma": (Rdma("rdma/a"),)}, "baseline", False),
        ({"host_network": True}, "baseline", False),
        ({"volumes": (Volume("/mnt", "/data"),)}, "baseline", False),
    ):
        for template in pods(target, **values):
            found = pod_security_violation({"kind": "Pod", **template}, level)
            assert (found is None) == fits, found


@requires_user_namespace
def test_the_launcher_runs_as_a_restricted_pod_would_run_it(tmp_path: Path) -> None:
    """A user without a name, no capability, no new privileges; / and the working folder are read-only."""
    (template, *_) = pods("kubernetes", security="restricted")
    (container,) = template["spec"]["containers"]
    user = template["spec"]["securityContext"]
    given = {item["name"]: item["value"] for item in container["env"] if item["name"] in ("HOME", "USER")}
    script = tmp_path / "train.py"
    script.write_text(
        "import getpass, os, pathlib\n"
        "assert os.access(pathlib.Path.home(), os.W_OK)\n"
        "print('trains as', os.getuid(), getpass.getuser())"
    )
    tmp_path.chmod(0o555)
    launcher = [
        sys.executable,
        "-m",
        "platform_launch",
        "run",
        "--launcher",
        "python",
        "--script",
        str(script),
    ]
    done = subprocess.run(
        [*restricted(user["runAsUser"], user["runAsGroup"]), *launcher, "--script", str(script)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/", **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"trains as {user['runAsUser']} {given['USER']}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("gang", "scheduler", "mark"),
    [
        ("volcano", "volcano", ("annotations", "scheduling.k8s.io/group-name")),
        ("scheduler-plugins", "scheduler-plugins-scheduler", ("labels", "scheduling.x-k8s.io/pod-group")),
    ],
)
@pytest.mark.parametrize("target", ["kubernetes", "jobset", "pytorchjob", "trainjob", "leaderworkerset"])
def test_a_gang_is_a_pod_group_that_every_pod_joins(
    target: str, gang: str, scheduler: str, mark: tuple[str, str]
) -> None:
    group, *rest = documents(render(a_job(nodes=3, spares=0, gang=gang, namespace="team"), target))
    assert (group["kind"], group["spec"]) == ("PodGroup", {"minMember": 3})
    assert faults(group["spec"], POD_GROUPS[gang]) == []
    assert group["metadata"] == {"name": "demo", "namespace": "team"}
    for template in pod_templates(rest):
        assert template["spec"]["schedulerName"] == scheduler
        assert template["metadata"][mark[0]][mark[1]] == "demo"
    (own, *_) = pods(target, gang=gang, scheduler="my-scheduler")
    assert own["spec"]["schedulerName"] == "my-scheduler"


@pytest.mark.parametrize("target", ["kubernetes", "jobset", "pytorchjob", "trainjob", "leaderworkerset"])
def test_a_queue_and_a_priority_belong_to_volcanos_group_or_to_kueue(target: str) -> None:
    """Volcano's scheduler reads both from the PodGroup (volcano.sh/apis scheduling/v1beta1)."""
    given = {"queue": "team-a", "priority_class": "high", "gang": "volcano"}
    group, *rest = documents(render(a_job(**given), target))
    assert group["spec"] == {"minMember": 2, "queue": "team-a", "priorityClassName": "high"}
    assert faults(group["spec"], POD_GROUPS["volcano"]) == []
    assert faults(group["spec"], POD_GROUPS["scheduler-plugins"])
    assert "kueue" not in str(rest)
    group, *rest = documents(render(a_job(**{**given, "gang": "scheduler-plugins"}), target))
    assert group["spec"] == {"minMember": 2}
    assert rest[-1]["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}


GIVEN: dict[str, Any] = {
    "account": "vision",
    "requeue": True,
    "notice": 7,
    "time_limit_s": 3600,
    "retries": 5,
    "queue": "team-a",
    "ttl_s": 60,
    "gang": "volcano",
    "scheduler": "mine",
    "runtime": Runtime("TrainingRuntime", "mine"),
    "namespace": "team-a",
    "volumes": (Volume("data", "/data"),),
    "shm_gib": 8,
    "rdma": (Rdma("rdma/a"),),
    "resources": (("hugepages-2Mi", "2Gi"),),
    "gpu_resource": "amd.com/gpu",
    "node_selector": (("zone", "a"),),
    "tolerations": (Toleration("a"),),
    "labels": (("a", "b"),),
    "annotations": (("a", "b"),),
    "image_pull_secrets": ("registry",),
    "service_account": "trainer",
    "security": "restricted",
    "run_as": RunAs(1, 2),
    "priority_class": "high",
    "host_network": True,
    "patch": {"spec": {"hostIPC": True}},
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_setting_is_expressed_or_reported(target: str) -> None:
    """Each changes what is submitted, or is named in a comment and leaves no other trace."""
    plain = a_job(image=None if target == "slurm" else IMAGE)
    for field, value in GIVEN.items():
        job = replace(plain, **{field: value})
        before, after = (
            [line for line in render(one, target).splitlines() if not line.startswith("# ")]
            for one in (plain, job)
        )
        expected = [f"{target} cannot express these settings: {KEYS[field]}"] if before == after else []
        assert unused_notes(job, target) == expected, field


@pytest.mark.parametrize("resource", ["amd.com/gpu", "huawei.com/Ascend910", "nvidia.com/mig-1g.10gb"])
@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_gpus_may_have_another_name(target: str, resource: str) -> None:
    for template in pods(target, gpu_resource=resource):
        limits = template["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {resource: 8}
        assert CONTROLLERS[target](render(a_job(gpu_resource=resource), target), 1).argv


def test_a_runtime_of_the_cluster_gets_what_a_trainjob_can_give() -> None:
    job = a_job(
        runtime=Runtime("ClusterTrainingRuntime", "torch-distributed"),
        env=(("A", "b"),),
        script="/t.py",
        volumes=(Volume("data", "/data"),),
        exclude=("gn1",),
    )
    (document,) = documents(render(job, "trainjob"))
    assert document["spec"]["runtimeRef"] == {"kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
    trainer = document["spec"]["trainer"]
    assert trainer["command"] == ["/bin/bash", "/workspace/start_multinode_platform.sh"]
    assert trainer["args"] == ["--script", "/t.py"]
    assert trainer["env"] == [{"name": "A", "value": "b"}]
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}
    assert trainer["resourcesPerNode"]["requests"] == {"cpu": 32, "memory": "128Gi"}
    assert [text.partition(":")[0] for text in advice.defaults(job, "trainjob")] == [
        "no --cpus",
        "no --memory-gib",
    ]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["image"] == IMAGE
    (document,) = documents(render(replace(job, image=None), "trainjob"))
    assert "image" not in document["spec"]["trainer"]  # the runtime's
    assert unused_notes(job, "trainjob") == ["trainjob cannot express these settings: volumes, exclude"]
    assert unused_notes(job, "jobset") == ["jobset cannot express these settings: runtime"]
