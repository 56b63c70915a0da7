"""examples/ddp under torchrun: two nodes train one model, stop together and go on where they were."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.examples.lab import ROOT, said, simulate, start, until
from tests.lab.forking import program
from tests.lab.waiting import LIMIT_S

pytestmark = pytest.mark.train

SCRIPT = str(ROOT / "examples" / "ddp" / "train.py")


def alone(*arguments: str, folder: Path) -> str:
    """Run the script as a single process, without any launcher."""
    with program(SCRIPT, *arguments, folder=folder, output=folder / "alone.log") as running:
        assert running.wait() == 0, running.said()
    return running.said()


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"Loss: ([\d.]+)", output)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of 80 steps in one process, one of every 20."""
    return losses(alone("--steps", "80", folder=tmp_path_factory.mktemp("reference")))


@pytest.mark.nightly
def test_two_nodes_train_as_one_process_would(reference: list[float], tmp_path: Path) -> None:
    output = simulate("--example", "ddp", "--", "--steps", "80", folder=tmp_path)
    assert said(output, "processes: 2") == ["processes: 2 on cpu, 64 images each, from step 0"]
    assert float(said(output, "held-out accuracy: ")[0].split()[-1]) > 0.7
    assert (tmp_path / "runs" / "ddp" / "checkpoint.pt").exists()
    assert losses(output) == pytest.approx(reference, abs=0.02)
    # Only the main process speaks, from the first node.
    assert len(losses(output)) == 4
    assert "[node 1] Step" not in output


@pytest.mark.nightly
def test_an_early_warning_leaves_a_checkpoint_that_is_taken_up(tmp_path: Path) -> None:
    with start(
        *("simulate", "--nodes", "2", "--example", "ddp", "--no-roll-call", "--"),
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


@pytest.mark.nightly
def test_a_resumed_training_is_the_same_training(reference: list[float], tmp_path: Path) -> None:
    for steps in ("40", "80"):
        resumed = alone("--steps", steps, folder=tmp_path)
    assert losses(resumed) == reference[2:]


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    with ExitStack() as ending:
        nodes = [
            ending.enter_context(
                program(
                    *(SCRIPT, "--global-batch", "63"),
                    folder=tmp_path,
                    output=tmp_path / f"node{rank}.log",
                    environment={**place, "RANK": str(rank)},
                )
            )
            for rank in range(2)
        ]
        for node in nodes:
            assert node.wait() == 1
            assert "--global-batch 63 cannot be shared by 2 processes" in node.said()
