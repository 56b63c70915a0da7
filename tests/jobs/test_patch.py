"""``--patch FILE``: merged as kubectl merges it, and checked afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from platform_launch.cli import main
from platform_launch.errors import InputError
from platform_launch.jobs import patch, render
from tests.jobs.manifests import KUBERNETES_TARGETS, a_job, documents, pod_templates
from tests.jobs.test_server_check import requires_kubectl

SIDECAR = """
metadata:
  labels: {team: vision}
spec:
  terminationGracePeriodSeconds: 600
  automountServiceAccountToken: null
  tolerations: [{key: gpu, operator: Exists}]
  containers:
    - resources: {limits: {cpu: 8}}
      env: [{name: EXTRA, value: "1"}]
      volumeMounts: [{mountPath: /cache, name: cache}, {mountPath: /dev/shm, $patch: delete}]
    - name: uploader
      image: a/uploader:1
      volumeMounts: [{mountPath: /cache, name: cache}]
  volumes:
    - {name: cache, csi: {driver: cache.csi.example, volumeAttributes: {size: 1Ti}}}
"""


def patched(text: str, target: str = "kubernetes") -> list[dict[str, Any]]:
    job = a_job(patch=patch.read(text, "patch.yaml"), env=(("A", "b"),))
    return [template["spec"] for template in pod_templates(documents(render(job, target)))]


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_a_patch_changes_every_pod_whatever_its_container_is_called(target: str) -> None:
    for pod in patched(SIDECAR, target):
        own, sidecar = pod["containers"]
        assert own["command"]
        assert own["image"]
        assert own["resources"]["limits"] == {"nvidia.com/gpu": 8, "cpu": 8}
        assert {"name": "A", "value": "b"} in own["env"]
        assert {"name": "EXTRA", "value": "1"} in own["env"]
        assert [mount["mountPath"] for mount in own["volumeMounts"]] == ["/cache"]
        assert sidecar["name"] == "uploader"
        assert [volume["name"] for volume in pod["volumes"]] == ["shm", "cache"]
        assert pod["terminationGracePeriodSeconds"] == 600
        assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]  # atomic in Kubernetes
        assert "automountServiceAccountToken" not in pod
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@requires_kubectl
def test_it_merges_as_kubectl_does(tmp_path: Path) -> None:
    (plain,) = [template["spec"] for template in pod_templates(documents(render(a_job(), "kubernetes")))]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": plain}
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod), encoding="utf-8")
    change = yaml.safe_load(SIDECAR)
    change["spec"]["containers"][0]["name"] = "training"
    done = subprocess.run(
        [
            "kubectl",
            "patch",
            "--local",
            "-f",
            file,
            "--type=strategic",
            "-p",
            json.dumps(change),
            "-o",
            "json",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": str(Path(shutil.which("kubectl") or "").parent), "HOME": str(tmp_path)},
    )
    theirs = json.loads(done.stdout)["spec"]
    (ours,) = [
        template["spec"]
        for template in pod_templates(
            documents(render(a_job(patch=patch.read(SIDECAR, "patch.yaml")), "kubernetes"))
        )
    ]

    def by_name(pod: dict[str, Any]) -> dict[str, Any]:
        """Its lists that merge by a key have no order, which kubectl changes."""
        containers = {}
        for container in pod["containers"]:
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            env = {variable["name"]: variable for variable in container.get("env", [])}
            limits = {
                key: str(value) for key, value in container.get("resources", {}).get("limits", {}).items()
            }
            containers[container["name"]] = (container["image"], mounts, env, limits)
        rest = ("restartPolicy", "terminationGracePeriodSeconds", "tolerations", "enableServiceLinks")
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        return {"containers": containers, "volumes": volumes} | {key: pod.get(key) for key in rest}

    assert by_name(ours) == by_name(theirs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is not a patch"),
        ("{}", "is not a patch"),
        ("spec: [", "is not YAML"),
        ("template: {spec: {}}", "expected metadata: or spec:"),
        ("metadata: {name: other}", "expected labels, annotations"),
        ("spec: [a]", "expected a mapping"),
        ("spec: {restartPolicy: Always}", "restartPolicy is set by the manifest itself"),
        ("spec: {activeDeadlineSeconds: 2024-01-01}", "quote it"),
        ("spec: {nodeSelector: {1: a}}", "quote it"),
    ],
)
def test_a_file_that_is_no_patch_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        patch.read(text, "patch.yaml")
    assert words in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("containers: [{name: training, $patch: delete}]", "removes container training"),
        ("containers: [{command: null}]", "removes container training"),
        ("containers: [{env: [{name: NNODES, value: '4'}]}]", "NNODES is set by the scheduler"),
        ("containers: [{env: [{name: A, value: 1}]}]", "which is not a string: quote it"),
        (
            "containers: [{volumeMounts: [{mountPath: /a, name: nowhere}]}]",
            "'nowhere', which the pod",
        ),
        ("volumes: [{emptyDir: {}}]", "an item has no name"),
    ],
)
def test_a_patch_after_which_the_pod_would_not_run_is_refused(spec: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        patched(f"spec: {{{spec}}}")
    assert words in caught.value.message


def test_a_patch_is_a_flag_and_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "patch.yaml"
    file.write_text(SIDECAR, encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text(f"name: demo\nimage: a/b:1\nmodule: pkg.train\npatch: {file}\n", encoding="utf-8")
    assert main(["job", "volcano", "--file", str(job)]) == 0
    from_file = capsys.readouterr().out
    assert "a/uploader:1" in from_file
    assert (
        main(
            ["job", "volcano", "--name", "demo", "--image", "a/b:1", "-m", "pkg.train", "--patch", str(file)]
        )
        == 0
    )
    assert capsys.readouterr().out == from_file
    file.write_text("spec: {restartPolicy: Always}", encoding="utf-8")
    assert main(["job", "volcano", "--file", str(job)]) == 66
