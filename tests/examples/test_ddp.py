"""examples/ddp under torchrun: two nodes train one model, stop together and go on where they were."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.lab import LIMIT_S, ROOT, environment, said, simulate, start, until

pytestmark = [pytest.mark.train, pytest.mark.timeout(200)]


def alone(*arguments: str, folder: Path) -> str:
    """Run the script as a single process, without any launcher."""
    script = ROOT / "examples" / "ddp" / "train.py"
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"Loss: ([\d.]+)", output)]


def test_two_nodes_train_as_one_process_would(tmp_path: Path) -> None:
    output = simulate("--launcher", "torchrun", "--", "--steps", "80", folder=tmp_path)
    assert said(output, "2 process(es)") == ["2 process(es) on cpu, 64 images each, from step 0"]
    assert float(said(output, "held-out accuracy: ")[0].split()[-1]) > 0.7
    (tmp_path / "runs" / "ddp" / "checkpoint.pt").unlink()
    reference = alone("--steps", "80", folder=tmp_path)
    assert losses(output) == pytest.approx(losses(reference), abs=0.02)
    # Only the main process speaks, from the first node.
    assert len(losses(output)) == 4
    assert "[node 1] Step" not in output


def test_an_early_warning_leaves_a_checkpoint_that_is_taken_up(tmp_path: Path) -> None:
    with start(
        *("simulate", "--nodes", "2", "--launcher", "torchrun", "--"),
        *("--steps", "100000", "--log-every", "5"),
        folder=tmp_path,
    ) as process:
        until(process, "Step 10/")
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    (written,) = set(said(output, "SIGUSR1: checkpoint written at step"))
    step = int(re.findall(r"\d+", written)[-1])
    assert step >= 10
    again = alone("--steps", str(step + 5), folder=tmp_path)
    assert f"from step {step}\n" in again


def test_a_resumed_training_is_the_same_training(tmp_path: Path) -> None:
    whole = alone("--steps", "40", "--log-every", "10", "--checkpoint", "whole.pt", folder=tmp_path)
    for steps in ("20", "40"):
        resumed = alone("--steps", steps, "--log-every", "10", folder=tmp_path)
    assert losses(resumed) == losses(whole)[2:]


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    with start(
        *("simulate", "--nodes", "2", "--launcher", "torchrun", "--", "--global-batch", "63"), folder=tmp_path
    ) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said(output, "--global-batch 63 cannot be shared by 2 processes")
