"""What a node of a real Slurm job reads about its place."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.lab.slurm import GPUS_PER_NODE, Cluster, requires_slurm
from tests.slurm.conftest import ROOT

pytestmark = requires_slurm

LAUNCH = (sys.executable, str(ROOT / "platform_launch" / "__main__.py"))
SRUN = ("srun", "--immediate=20", "--time=1")


def topologies(cluster: Cluster, *options: str) -> list[dict[str, Any]]:
    """Run ``topology`` on every node of a step and return its answers, by node rank."""
    done = cluster.run([*SRUN, *options, *LAUNCH, "topology", "--format", "json"])
    assert done.returncode == 0, done.stderr
    decoder, text, answers = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        answer, end = decoder.raw_decode(text)
        answers.append(answer)
        text = text[end:].strip()
    return sorted(answers, key=lambda answer: int(answer["node_rank"]))


def test_srun_tells_every_node_its_place(cluster: Cluster) -> None:
    answers = topologies(cluster, "--nodes=2", "--ntasks-per-node=1", f"--gres=gpu:{GPUS_PER_NODE}")
    assert [answer["node_rank"] for answer in answers] == [0, 1]
    for answer in answers:
        assert (answer["platform"], answer["nnodes"], answer["hosts"]) == ("slurm", 2, ["node0", "node1"])
        assert answer["master_addr"] == "node0"
        assert answer["nproc_per_node"] == GPUS_PER_NODE
    assert answers[0]["master_port"] == answers[1]["master_port"]


def test_the_switches_of_a_task_are_those_of_topology_conf(cluster: Cluster) -> None:
    code = (
        "import json, os; from platform_launch.environment import Environment as E;"
        "from platform_launch.platforms.switches import place_of, places_of; env = E.of_this_process();"
        "print(json.dumps([place_of(env), places_of(env, ['node0', 'node1'])]))"
    )
    done = cluster.run([*SRUN, "--nodes=2", "--ntasks-per-node=1", sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    found = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [own for own, _ in found] == [["core", "rack0"], ["core", "rack1"]]
    assert [known for _, known in found] == [[["core", "rack0"], ["core", "rack1"]]] * 2


def test_jobs_that_share_a_node_do_not_share_a_port(cluster: Cluster) -> None:
    ports = {topologies(cluster, "--nodes=1", "--ntasks=1")[0]["master_port"] for _ in range(2)}
    assert len(ports) == 2
    # The launcher uses the two ports after it, too.
    assert abs(ports.pop() - ports.pop()) > 1


def test_a_step_on_part_of_the_allocation_counts_its_own_nodes(cluster: Cluster) -> None:
    inner = f"srun --nodes=1 --ntasks=1 --nodelist=node1 {' '.join(LAUNCH)} topology --format json"
    done = cluster.run(["salloc", "--immediate=20", "--nodes=2", "--time=1", "sh", "-c", inner])
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["nnodes"], answer["node_rank"], answer["hosts"]) == (1, 0, ["node1"])


def test_several_tasks_on_a_node_are_refused(cluster: Cluster) -> None:
    done = cluster.run([*SRUN, "--nodes=1", "--ntasks-per-node=2", *LAUNCH, "topology"])
    assert done.returncode == 65
    assert "--ntasks-per-node=1" in done.stderr


def test_a_batch_body_without_srun_is_refused_with_the_remedy(cluster: Cluster) -> None:
    job = cluster.submit(f"#!/bin/bash\n#SBATCH --nodes=2\n{ROOT}/start_multinode_platform.sh\n")
    assert cluster.wait(job, "COMPLETED", "FAILED")["ExitCode"] == "65:0"
    assert "hint:  start it on every node: srun --ntasks-per-node=1" in job.text
