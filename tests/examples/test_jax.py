"""examples/jax: processes of several nodes find each other, share the data, stop together and go on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.lab import ROOT, environment, said, simulate, start, until
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(find_spec("jax") is None, reason="needs jax (the extra of that name)"),
]

FAILS_IN_ONE = """
import os, pathlib, time
pathlib.Path("started" + os.environ["JAX_PROCESS_ID"] + "of" + os.environ["JAX_NUM_PROCESSES"]).touch()
while os.environ["LOCAL_RANK"] != "1" or len(list(pathlib.Path().glob("started*"))) < 3:
    time.sleep(0.02)
raise SystemExit(7)
"""


@takes_long
def test_two_nodes_train_together(tmp_path: Path) -> None:
    output = simulate("--example", "jax", "--", "--steps", "150", "--accumulate", "2", folder=tmp_path)
    assert said(output, "processes: 2") == [
        "processes: 2, cpu devices: 2, 128 points per process, from step 0"
    ]
    assert float(said(output, "held-out accuracy: ")[0].split()[-1]) > 0.95
    assert "[node 1] Step" not in output


@pytest.mark.nightly
def test_an_early_warning_leaves_a_checkpoint_that_a_second_run_takes_up(tmp_path: Path) -> None:
    with start(
        *("simulate", "--nodes", "2", "--example", "jax", "--no-roll-call", "--"),
        *("--log-every", "5", "--steps", "1000000"),
        folder=tmp_path,
    ) as process:
        until(process, "Step 10/")
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGUSR1
    (written,) = set(said(output, "SIGUSR1: checkpoint written at step"))
    step = int(re.findall(r"\d+", written)[-1])
    assert step >= 10
    assert (tmp_path / "runs" / "jax" / "checkpoint.npz").exists()
    alone = [sys.executable, str(ROOT / "examples" / "jax" / "train.py"), "--steps", str(step + 5)]
    done = subprocess.run(
        alone, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert said(done.stdout, f"from step {step}")


@pytest.mark.nightly
def test_several_processes_of_one_node_train_together(tmp_path: Path) -> None:
    with start(
        *("run", "--example", "jax", "--jax-per-gpu", "--nproc-per-node", "2", "--", "--steps", "60"),
        folder=tmp_path,
    ) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert said(output, "processes: 2, cpu devices: 2")


def test_processes_of_one_node_fail_together(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FAILS_IN_ONE)
    with start(
        *("run", "--launcher", "jax", "--jax-per-gpu", "--nproc-per-node", "3", "--script", str(script)),
        folder=tmp_path,
    ) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 7
    assert sorted(path.name for path in tmp_path.glob("started*")) == [f"started{n}of3" for n in range(3)]
    assert said(output, "process 1 of this node ended with exit code 7")
