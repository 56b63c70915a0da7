"""The whole way: two hosts wait, rank 0 runs start_multinode_platform.sh on both, kills it, runs it again."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.dist_launch.lab import ROOT, Node, eventually, jobs_on, requires_ssh, script, waiting
from tests.lab.netns import requires_netns
from tests.lab.waiting import LIMIT_S

pytestmark = [requires_netns, requires_ssh]

TRAIN = ROOT / "tests" / "lab" / "summing.py"


def test_train_kill_and_train_again(pair: list[Node], tmp_path: Path) -> None:
    with waiting(pair):
        train_kill_and_train_again(pair, tmp_path)


def train_kill_and_train_again(cluster: list[Node], tmp_path: Path) -> None:
    job = script(
        tmp_path / "train.sh",
        f"export VIRTUAL_ENV={sys.prefix}\n"
        f'exec {ROOT}/start_multinode_platform.sh --launcher python --no-doctor --script {TRAIN} "$@"\n',
    )
    logs = tmp_path / "logs"
    launch: list[str | Path] = ["run", "--log-dir", logs, job, "--log-dir", tmp_path / "inner", "--"]
    long = cluster[0].start(*launch, "1000")
    try:
        eventually(
            "the training is on its way",
            lambda: all("Step 1 " in text for text in logs_of(logs)) and len(logs_of(logs)) == 2,
        )
        killed = cluster[0].dist_launch("kill", "--grace-period", "10")
        assert killed.returncode == 0, killed.stderr
        output, _ = long.communicate(timeout=LIMIT_S)
    finally:
        long.kill()
    assert long.returncode == 143, output
    assert "summing.py" in killed.stdout
    assert not any(jobs_on(node) for node in cluster)

    done = cluster[0].dist_launch(*launch, "3")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"[rank-{rank}] Step 2 | rank {rank} of 2 | sum 3" in done.stdout
    assert done.stdout.count("finished in process") == 2
    assert not any(jobs_on(node) for node in cluster)
    assert all(node.process is not None and node.process.poll() is None for node in cluster)
    assert "nothing" in cluster[0].dist_launch("status").stdout
    assert not any((cluster[0].state / "jobs").iterdir())


def logs_of(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("train_default_node*.log")]
