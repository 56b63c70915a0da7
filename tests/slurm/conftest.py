"""One Slurm of two nodes for all tests here: it is up in a second or two, and every job leaves it idle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.slurm import Cluster, slurm
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
# The entrypoint takes the environment that is active: that of these tests.
ENVIRONMENT = {"VIRTUAL_ENV": sys.prefix, "PYTHONPATH": str(ROOT)}

Render = Callable[..., str]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running Slurm with node0 and node1."""
    with slurm(2, tmp_path_factory.mktemp("slurm"), ENVIRONMENT) as running:
        yield running


@pytest.fixture(autouse=True)
def idle(cluster: Cluster) -> Iterator[None]:
    """Leave no job behind, whatever became of the test."""
    yield
    cluster.run(["scancel", "--user=root"])
    cluster.await_idle()


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Return a batch script of ``platform-launch job slurm``: ``render(*options, arguments=(…))``."""

    def script(*options: str, arguments: tuple[str, ...] = ()) -> str:
        command = [sys.executable, "-m", "platform_launch", "job", "slurm", "--name", "lab", "--nodes", "2"]
        command += ["--gpus-per-node", "0", "--cpus", "1", f"--log-dir={tmp_path}"]
        done = subprocess.run(
            [*command, *options, *(("--", *arguments) if arguments else ())],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return script
