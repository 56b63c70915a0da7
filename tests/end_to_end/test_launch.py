"""From the container command to a trained checkpoint: accelerate, DeepSpeed and signals.

On two real hosts: tests/rendezvous/test_real_training.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.needs import requires_pid_namespace, takes_long
from tests.lab.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = ROOT / "start_multinode_platform.sh"
SMALL = ["--example", "taehv", "--config", str(ROOT / "configs" / "taehv_config_small.py")]

pytestmark = pytest.mark.train


def environment(**variables: str) -> dict[str, str]:
    """Return what a container has: nothing of the test's own shell but the way to this interpreter."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "VIRTUAL_ENV": sys.prefix,
        "OMP_NUM_THREADS": "1",
        **variables,
    }


# Python imports it at its start. torch's compiler costs each process of the shipped training seconds.
NOTES_IMPORTS = """
import os, sys
class Noted:
    @staticmethod
    def find_spec(name, *_):
        if name in ("torch", "torch._inductor.compile_fx"):
            with open(os.environ["IMPORTS"], "a") as file:
                file.write(name + "\\n")
sys.meta_path.insert(0, Noted)
"""


@contextmanager
def as_pid_1(
    command: list[str], log: Path, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a command as PID 1 of a pid namespace; yield ``unshare`` and the command's own pid."""
    with log.open("wb") as file:
        outer = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(**variables),
        )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        inner = until(lambda: children.read_text().split(), "unshare starts nothing")
        yield outer, int(inner[0])
    finally:
        outer.kill()
        outer.wait()


def said(log: Path) -> str:
    return log.read_text(errors="replace")


@requires_pid_namespace
def test_sigterm_to_the_entrypoint_as_pid_1_ends_the_training_with_a_checkpoint(tmp_path: Path) -> None:
    log = tmp_path / "out"
    command = [
        str(ENTRYPOINT),
        *SMALL,
        *("--log-dir", str(tmp_path / "logs")),
        "--",
        *("--output-dir", str(tmp_path / "run"), "--max-train-steps", "100000", "--log-every", "1"),
    ]
    imports = tmp_path / "imports"
    (tmp_path / "sitecustomize.py").write_text(NOTES_IMPORTS)
    with as_pid_1(command, log, PYTHONPATH=str(tmp_path), IMPORTS=str(imports)) as (outer, inner):
        until(
            lambda: "Step 3/100000" in log.read_text(errors="replace"),
            lambda: log.read_text(errors="replace"),
        )
        os.kill(inner, signal.SIGTERM)
        code = outer.wait(timeout=LIMIT_S)
    text = said(log)
    assert code == 143, text
    assert "training was stopped after" in text
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))
    assert checkpoints, text
    assert int(checkpoints[-1].name.split("-")[1]) >= 3
    assert set(imports.read_text().split()) == {"torch"}, "torch's compiler is imported"


def simulate_two_nodes(script: Path, logs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the two nodes of a job on this machine."""
    two_nodes = [str(ROOT / "platform_launch" / "__main__.py"), "simulate", "--nodes", "2"]
    return subprocess.run(
        [sys.executable, *two_nodes, "--script", str(script), "--log-dir", str(logs), *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@takes_long
def test_a_script_of_ones_own_runs_on_two_simulated_nodes(tmp_path: Path) -> None:
    """The README's example, word for word."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(readme.split("```python\n", 1)[1].split("```", 1)[0])
    done = simulate_two_nodes(script, tmp_path / "logs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[node 0] rank 0 of 2: 2 processes answered" in done.stdout
    assert "[node 1] rank 1 of 2: 2 processes answered" in done.stdout


@takes_long
def test_a_plain_accelerate_script_needs_no_backend_to_train_on_cpu_nodes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    # It leaves at once when done: torch on a busy CPU machine may abort while it is being taken down.
    script.write_text(
        "import os\n"
        "import torch\n"
        "from accelerate import Accelerator\n"
        "accelerator = Accelerator()\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)\n"
        "model, optimizer, data = accelerator.prepare(model, optimizer, data)\n"
        "for batch in data:\n"
        "    accelerator.backward(model(batch).square().mean())\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print(f'trained as {accelerator.process_index} of {accelerator.num_processes}', flush=True)\n"
        "accelerator.end_training()\n"
        "os._exit(0)\n"
    )
    done = simulate_two_nodes(script, tmp_path / "logs", "--no-roll-call")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained as 0 of 2" in done.stdout
    assert "trained as 1 of 2" in done.stdout


def test_one_failing_node_ends_the_simulation_with_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time, traceback\n"
        "if os.environ['RANK'] == '1':\n"
        "    try:\n"
        "        open('/data/nowhere/clip.json')\n"
        "    except OSError:\n"
        "        traceback.print_exc()\n"
        "        sys.exit(9)\n"
        "time.sleep(600)\n"
    )
    done = simulate_two_nodes(script, tmp_path / "logs", "--launcher", "python")
    assert done.returncode == 9, done.stdout
    assert re.search(r"\[node 0\] [0-9:]{8} \[ERROR\] node 1, ", done.stdout), done.stdout
    assert "[ranks-left" not in done.stdout  # it left with a code of its own
    (log,) = (tmp_path / "logs").glob("*_node1_*.log")
    # The root cause is the last thing on the screen.
    assert re.search(r"retry: .*\[node-quoted|cause: .*\[verdict\]", done.stdout.splitlines()[-1])
    # What node 0 repeats of node 1 stands in node 1's log at the line that it names.
    name = re.escape(log.name)
    quoted = re.search(rf"\[node 0\] .*seen: +{name}:(\d+): (.*) \[node-quoted", done.stdout)
    assert quoted, done.stdout
    assert log.read_text().splitlines()[int(quoted[1]) - 1].rstrip() == quoted[2]
    assert re.search(r"\[node 0\] .*\[ERROR\] retry: .* \[node-quoted", done.stdout), done.stdout


def test_a_failed_training_ends_with_its_cause_as_the_last_word(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('starting')\nopen('/data/nowhere/clip.json')\n")
    done = subprocess.run(
        [str(ENTRYPOINT), "--script", str(script), "--log-dir", str(tmp_path / "logs")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    last = [line for line in done.stderr.splitlines() if "[ERROR]" in line]
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/data/nowhere/clip.json'" in "\n".join(
        last
    )
    assert any(f"{script}:2" in line for line in last)
    record = json.loads(next((tmp_path / "logs").glob("*.json")).read_text())
    assert record["outcome"]["why"]["cause"] == "file_missing"
