"""A rendered job, started as its scheduler would, is read by the launcher as the job that was asked for."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest

from platform_launch.console import languages
from platform_launch.environment import Environment
from platform_launch.jobs import TARGETS, render
from platform_launch.platforms import detect, doubt_count
from platform_launch.topology import Overrides, Topology
from tests.jobs.controllers import CONTROLLERS, Node, bare_kubebrain
from tests.jobs.manifests import ENTRYPOINT, KUBERNETES_TARGETS, a_job, documents

PLATFORMS = {
    "slurm": "slurm",
    "kubernetes": "indexed_job",
    "jobset": "jobset",
    "pytorchjob": "pytorchjob",
    "trainjob": "trainer_v2",
    "leaderworkerset": "lws",
    "volcano": "volcano",
    "kubebrain": "kubebrain",
}


def read(node: Node, gpus: int) -> Topology:
    """What the launcher makes of a started node on which it counts ``gpus``."""
    return doubt_count(detect(Environment(node.variables, hostname=node.hostname), Overrides()), gpus)


@pytest.mark.parametrize("gpus", [8, 1, 0])
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("target", TARGETS)
def test_every_node_reads_its_place_in_the_job_that_was_asked_for(target: str, nodes: int, gpus: int) -> None:
    text = render(a_job(nodes=nodes, gpus_per_node=gpus), target)
    started = [CONTROLLERS[target](text, rank) for rank in range(nodes)]
    read_as = [read(node, gpus) for node in started]
    assert [topology.node_rank for topology in read_as] == list(range(nodes))
    assert {topology.platform for topology in read_as} == {PLATFORMS[target]}
    assert {topology.nnodes for topology in read_as} == {nodes}
    assert {topology.master_addr for topology in read_as} == {started[0].master}
    assert len({topology.master_port for topology in read_as}) == 1
    assert {topology.nproc_per_node for topology in read_as} <= {gpus or 1, None}
    assert [topology.warnings for topology in read_as] == [()] * nodes


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_platform_that_sets_the_four_bare_names_reads_the_kubebrain_job(nodes: int) -> None:
    text = render(a_job(nodes=nodes), "kubebrain")
    started = [bare_kubebrain(text, rank) for rank in range(nodes)]
    read_as = [read(node, 8) for node in started]
    assert [(topology.nnodes, topology.node_rank) for topology in read_as] == [
        (nodes, rank) for rank in range(nodes)
    ]
    assert {topology.master_addr for topology in read_as} == {"jo-x-worker-0"}


@pytest.mark.parametrize("target", ["pytorchjob", "trainjob", "slurm"])
def test_controllers_that_take_the_processes_per_node_are_told_them(target: str) -> None:
    node = CONTROLLERS[target](render(a_job(gpus_per_node=4), target), 1)
    topology = detect(Environment(node.variables, hostname=node.hostname), Overrides())
    assert topology.nproc_per_node == 4


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_every_pod_runs_the_same_command(target: str) -> None:
    arguments = ["--strict", "--", "--lr", "1e-3"]
    for entrypoint, start in (
        (ENTRYPOINT, ["/bin/bash", ENTRYPOINT]),
        ("platform-launch", ["platform-launch", "run"]),
        ("/venv/bin/platform-launch", ["/venv/bin/platform-launch", "run"]),
    ):
        job = a_job(
            nodes=2, retries=0, entrypoint=entrypoint, options=("--strict",), arguments=("--lr", "1e-3")
        )
        text = render(job, target)
        commands = [CONTROLLERS[target](text, rank).argv for rank in (0, 1)]
        assert commands == [[*start, *arguments]] * 2


@pytest.mark.parametrize("target", TARGETS)
def test_comments_are_in_the_readers_language_and_the_rest_is_the_same(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(requeue=True, quarantine="/q.jsonl", time_limit_s=3600, account="vision")
    english = render(job, target)
    monkeypatch.setattr(languages, "_chosen", ["zh"])
    chinese = render(job, target)
    comment = re.compile(r"(?:^|(?<= ))# .*$", re.MULTILINE)
    assert comment.sub("", chinese).replace("\n", "") == comment.sub("", english).replace("\n", "")
    notes = re.split(r"\n(?=# - )", chinese[chinese.index("# - ") :])
    assert all(re.search(r"[\u4e00-\u9fff]", note) for note in notes)


def test_two_slurm_jobs_on_one_node_get_different_ports() -> None:
    node = CONTROLLERS["slurm"](render(a_job(), "slurm"), 0)
    ports = {
        read(Node({**node.variables, "SLURM_JOB_ID": str(number)}, node.hostname, "", []), 8).master_port
        for number in (200505, 200506)
    }
    assert len(ports) == 2


def test_jobset_hands_its_restart_attempt_to_the_launcher() -> None:
    topology = read(CONTROLLERS["jobset"](render(a_job(), "jobset"), 1), 8)
    assert topology.restart_count == 0
    assert topology.job_id == "demo"


def test_the_jobs_that_the_how_to_shows_are_taken_and_the_indexed_one_tells_its_nodes_apart() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "submit-a-job.md"
    plain, indexed = re.findall(r"```yaml\n(apiVersion.*?)```", page.read_text("utf-8"), re.DOTALL)
    for document in [*documents(plain), *documents(indexed)]:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        if document["kind"] == "Job":  # its default, Always, is not for Jobs: the server refuses it
            assert document["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    started = [CONTROLLERS["kubernetes"](indexed, rank) for rank in (0, 1)]
    assert [(topology.nnodes, topology.node_rank) for topology in (read(node, 8) for node in started)] == [
        (2, 0),
        (2, 1),
    ]
    assert {read(node, 8).master_addr for node in started} == {started[0].master}
