"""``job slurm --server-check`` asks a real Slurm, which then has no job."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lab.slurm import Cluster, requires_slurm

pytestmark = requires_slurm

ROOT = Path(__file__).parents[2]
JOB = [sys.executable, "-m", "platform_launch", "job", "slurm", "--name", "lab", "--module", "pkg.train"]


def test_slurm_says_when_it_would_start_the_job_and_gets_none(cluster: Cluster) -> None:
    done = cluster.run([*JOB, "--nodes", "2", "--gpus-per-node", "1", "--cpus", "1", "--server-check"])
    assert done.returncode == 0, done.stderr
    assert "Slurm would accept this job" in done.stderr
    assert cluster.run(["squeue", "--noheader"]).stdout == ""


def test_slurm_refuses_more_nodes_than_it_has(cluster: Cluster) -> None:
    done = cluster.run([*JOB, "--nodes", "7", "--gpus-per-node", "1", "--cpus", "1", "--server-check"])
    assert done.returncode == 66, done.stderr
    assert "Slurm rejects this job" in done.stderr
    assert "error: " in done.stderr
