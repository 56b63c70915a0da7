"""A script's arguments arrive as they were given, whatever starts its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
# --start and --node abbreviate options of torchrun.
ARGUMENTS = [
    "--start",
    "3",
    "--node",
    "--",
    "-m",
    "$$",
    "$",
    "${local_rank}",
    "$local_rank",
    "$HOME",
    "$$$x",
    "a b",
    "",
    "*",
]

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    "launcher",
    [
        # Fills in string.Template in each word; tests/plan/test_launch_plan.py guards what it is given.
        pytest.param(["--launcher", "torchrun"], marks=pytest.mark.nightly),
        pytest.param(["--launcher", "accelerate"], marks=pytest.mark.nightly),  # through torchrun
        pytest.param(
            ["--launcher", "accelerate", "--deepspeed-config", "plain.yaml"], marks=pytest.mark.nightly
        ),  # without torchrun
        ["--launcher", "python"],
    ],
    ids=["torchrun", "accelerate", "accelerate without torchrun", "python"],
)
def test_arguments_and_dollars_in_the_scripts_path_arrive(launcher: list[str], tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text("distributed_type: 'NO'\ncompute_environment: LOCAL_MACHINE\n")
    script = tmp_path / "show$$.py"
    script.write_text("import json, sys; json.dump(sys.argv, open('argv.json', 'w'))\n", encoding="utf-8")
    command = [sys.executable, "-m", "platform_launch", "run", *launcher, "--log-dir", str(tmp_path / "logs")]
    done = subprocess.run(
        [*command, "--nproc-per-node", "1", "--script", str(script), "--", *ARGUMENTS],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "argv.json").read_text("utf-8")) == [str(script), *ARGUMENTS]
