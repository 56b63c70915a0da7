"""Whole jobs on a real Slurm: the batch script of ``platform-launch job slurm``, from sbatch to the end."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from platform_launch.health import quarantine
from platform_launch.health.quarantine import QuarantinedNode
from tests.lab.slurm import Cluster, Job, requires_slurm
from tests.lab.waiting import until
from tests.slurm.conftest import ROOT, Render

pytestmark = [requires_slurm, pytest.mark.train]

# A training in a few lines: saves when it is told to end, as a real one does.
TRAINING = """
import os, signal, sys, time
def save(number, frame):
    print("saved by", os.environ["RANK"], flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
print("training on", os.environ["RANK"], flush=True)
time.sleep(3000)
"""
# One that writes a checkpoint when it is warned, and goes on from it.
WARNED = """
import os, signal, sys, time
from pathlib import Path
checkpoint = Path(sys.argv[1])
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
def save(number, frame):
    if os.environ["RANK"] == "0":
        checkpoint.write_text(str(step))
        print("SIGUSR1: checkpoint written at step", step, flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGUSR1, save)
print("rank", os.environ["RANK"], "goes on from step", step, flush=True)
while True:
    time.sleep(0.1)
    step += 1
"""


@pytest.fixture
def training(tmp_path: Path) -> Path:
    script = tmp_path / "training of mine.py"
    script.write_text(TRAINING)
    return script


def start(cluster: Cluster, script: str) -> Job:
    job = cluster.submit(script)
    for rank in range(2):
        cluster.wait_for_text(job, f"training on {rank}")
    return job


def plain(training: Path) -> tuple[str, str]:
    return "--launcher=python", f"--script={training}"


def nothing_is_left(cluster: Cluster, training: Path) -> bool:
    """Tell whether launchers and trainings are gone; srun waits for lost nodes as long as Slurm does."""
    lines = [line for node in cluster.nodes for line in cluster.left_on(node, training.name)]
    return all(line.startswith("srun ") for line in lines)


@pytest.mark.nightly
def test_a_job_trains_with_accelerate_and_deepspeed(cluster: Cluster, render: Render, tmp_path: Path) -> None:
    arguments = (
        *("--max-train-steps", "4", "--warmup-steps", "1", "--log-every", "1"),
        *("--height", "32", "--width", "32", "--tracker", "none"),
        *("--output-dir", str(tmp_path / "run")),
    )
    script = render(
        "--example=taehv",
        f"--config={ROOT}/configs/taehv_config_small.py",
        arguments=arguments,
    )
    job = cluster.submit(script)
    assert cluster.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", job.text
    assert "master: node0:" in job.text
    assert "all 2 nodes are connected" in job.text
    assert "Step 4/4" in job.text
    assert job.text.count("[SUCCESS] training finished") == 2


def test_scancel_lets_the_training_save_and_leaves_nothing_behind(
    cluster: Cluster, render: Render, training: Path
) -> None:
    job = start(cluster, render(*plain(training)))
    cluster.run(["scancel", str(job.id)])
    assert cluster.wait(job, "CANCELLED")["JobState"] == "CANCELLED"
    for rank in range(2):
        cluster.wait_for_text(job, f"saved by {rank}")
    until(lambda: nothing_is_left(cluster, training), lambda: job.text)


def test_a_node_that_fails_ends_the_job_and_is_named(
    cluster: Cluster, render: Render, tmp_path: Path
) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text(
        "import os, sys, time\ntime.sleep(1 if os.environ['RANK'] == '1' else 100)\nsys.exit(7)\n"
    )
    job = cluster.submit(render(*plain(failing)))
    assert cluster.wait(job, "FAILED")["ExitCode"] != "0:0"
    assert "node 1, node1 (10.213.0.2): the training ended with exit code 7" in job.text


def test_the_time_limit_becomes_a_checkpoint_and_a_second_run_that_goes_on(
    cluster: Cluster, render: Render, tmp_path: Path
) -> None:
    warned = tmp_path / "warned.py"
    warned.write_text(WARNED)
    limits = ("--time", "1:00:00", "--notice", "30", "--requeue")
    job = cluster.submit(render(*limits, *plain(warned), arguments=(str(tmp_path / "checkpoint"),)))
    for rank in range(2):
        cluster.wait_for_text(job, f"rank {rank} goes on from step 0")
    # Slurm counts in minutes from the start and looks every half: more than the notice must be left.
    hours, minutes, seconds = map(int, cluster.show(job)["RunTime"].split(":"))
    limit = hours * 60 + minutes + (1 if seconds < 20 else 2)
    cluster.run(["scontrol", "update", f"JobId={job.id}", f"TimeLimit={limit}"])
    cluster.wait_for_text(job, "SIGUSR1: checkpoint written at step")
    # On a busy machine a second run of a minute would be warned before it trains, again and again.
    cluster.run(["scontrol", "update", f"JobId={job.id}", "TimeLimit=60"])
    saved = re.findall(r"SIGUSR1: checkpoint written at step (\d+)", job.text)[0]
    # Not counted: a run's last lines are quoted at its end.
    for rank in range(2):
        cluster.wait_for_text(job, f"rank {rank} goes on from step {saved}\n")
    assert cluster.show(job)["Restarts"] != "0"


def test_a_lost_node_ends_the_job_on_the_others(cluster: Cluster, render: Render, training: Path) -> None:
    job = start(cluster, render(*plain(training)))
    lost = cluster.nodes[1]
    try:
        cluster.lose(lost)
        # Slurm takes half a minute to miss the node. Node 0's launcher sees its connection break at once.
        # The launcher on node 1 may hear of the end of its session a moment before it is killed.
        cluster.wait_for_text(job, "saved by 0")
        reasons = (": the launcher was killed", " was asked to stop (SIGHUP)")
        # On standard error, which Slurm may write later than what came on standard output after it.
        until(
            lambda: any(f"node 1 (node1 (10.213.0.2)){reason}" in job.text for reason in reasons),
            lambda: job.text,
        )
        until(lambda: nothing_is_left(cluster, training), lambda: job.text)
        cluster.run(["scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=lost"])
        cluster.wait(job, "NODE_FAIL", "FAILED")
    finally:
        cluster.bring_back(lost)


def test_a_job_on_a_node_in_quarantine_is_requeued_and_runs_on_another(
    cluster: Cluster, render: Render, tmp_path: Path
) -> None:
    script = tmp_path / "where.py"
    script.write_text("import os; print('trained on', os.environ['SLURMD_NODENAME'], flush=True)\n")
    file = tmp_path / "quarantine.jsonl"
    batch = render(*plain(script), "--nodes", "1", "--requeue", "--quarantine", str(file))
    # After the script was written, as when a node is found bad while jobs wait in the queue.
    quarantine.add(file, QuarantinedNode("node0", time.time(), None, "GPU 3 has fallen off the bus"))
    job = cluster.submit(batch)
    cluster.wait_for_text(job, "trained on node1")
    seen = cluster.wait(job, "COMPLETED", "FAILED")
    assert (seen["JobState"], seen["Restarts"], seen["ExcNodeList"]) == ("COMPLETED", "1", "node0"), job.text
    assert "[node-unfit]" in job.text
