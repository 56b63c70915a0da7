"""A job that is asked to stop saves first: on every rank, under every launcher, with helper processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from platform_launch.process_stat import read_stat
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S, until
from tests.supervise.lab import alive

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "lab" / "saving.py"
# A rank that saves by itself when it is asked, without torch.
SAVES = """
import os, signal, sys, time
folder, rank, asked = sys.argv[1], os.environ["RANK"], []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: asked.append(1))
open(f"{folder}/ready-{rank}", "w").close()
while not asked:
    time.sleep(0.01)
time.sleep(1)
open(f"{folder}/rank-{rank}.pt", "w").close()
sys.exit(143)
"""
# Started by accelerate, which needs none of DeepSpeed for a script that does not use it either.
DEEPSPEED_YAML = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 1, zero3_init_flag: false}
use_cpu: true
"""


def descendants(root: int) -> set[int]:
    """Return a process and all below it."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {pid: stat.parent for pid in pids if (stat := read_stat(Path("/proc", str(pid)))) is not None}
    found, more = set[int](), {root}
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in found} - found
    return found


def launchers_of(root: int) -> list[int]:
    """Return the launchers that ``simulate`` started, node 0 first."""
    by_rank = {}
    for pid in descendants(root):
        if (stat := read_stat(Path(f"/proc/{pid}"))) is not None and stat.parent == root:
            variables = dict(
                entry.split(b"=", 1)
                for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if entry
            )
            by_rank[int(variables[b"RANK"])] = pid
    return [by_rank[rank] for rank in sorted(by_rank)]


@contextmanager
def job(
    folder: Path,
    *options: str,
    command: str = "run",
    ranks: int = 2,
    script_path: Path = SCRIPT,
    words: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
    **script: object,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job and wait until each of its ranks can be asked to stop."""
    arguments = [
        word for name, value in script.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    launch = (sys.executable, "-m", "platform_launch", command, *options)
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [
                *launch,
                "--script",
                str(script_path),
                "--log-dir",
                str(folder / "logs"),
                "--",
                str(folder),
                *arguments,
                *words,
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(
            lambda: len(list(folder.glob("ready-*"))) == ranks,
            lambda: (folder / "output").read_text(),
            pause_s=0.2,
        )
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT_S)


def saved(folder: Path) -> int:
    return len(list(folder.glob("rank-*.pt")))


def script_for(launcher: str, folder: Path) -> Path:
    """Return a script that saves when asked; its ranks agree on that under a launcher with an agent."""
    if launcher != "python":
        return SCRIPT
    script = folder / "saves.py"
    script.write_text(SAVES)
    return script


def launcher_options(launcher: str, folder: Path) -> tuple[str, ...]:
    if launcher == "deepspeed":
        yaml = folder / "deepspeed.yaml"
        yaml.write_text(DEEPSPEED_YAML)
        return ("--launcher", "accelerate", "--deepspeed-config", str(yaml), "--nproc-per-node", "2")
    return ("--launcher", launcher, "--nproc-per-node", "1" if launcher == "python" else "2")


def check(
    folder: Path, launcher: str, method: str, workers: int, who: str, number: signal.Signals, code: int
) -> None:
    """Ask a job on one node to stop, and expect each rank's save."""
    ranks = 1 if launcher == "python" else 2
    options = launcher_options(launcher, folder)
    restore = int(who == "every process")
    with job(
        folder, *options, ranks=ranks, method=method, workers=workers, exit=code, restore=restore
    ) as process:
        for pid in descendants(process.pid) if who == "every process" else {process.pid}:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        returned = process.wait(LIMIT_S)
    output = (folder / "output").read_text()
    assert saved(folder) == ranks, output
    assert "Traceback" not in output
    if returned:
        assert "[checkpoint-saved signal=" in output
        assert "[training-stopped exit_code=" in output
    assert returned in (code, 128 + number), output


@takes_long
@pytest.mark.parametrize(
    ("launcher", "method", "who", "number", "code"),
    [
        ("torchrun", "fork", "every process", signal.SIGTERM, 143),
        pytest.param("torchrun", "forkserver", "launcher", signal.SIGUSR1, 0, marks=pytest.mark.nightly),
    ],
)
def test_each_rank_saves_when_its_node_is_asked_to_stop(
    tmp_path: Path, launcher: str, method: str, who: str, number: signal.Signals, code: int
) -> None:
    check(tmp_path, launcher, method, 2, who, number, code)


@pytest.mark.nightly
@pytest.mark.parametrize("code", [0, 143])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("who", ["launcher", "every process"])
@pytest.mark.parametrize(
    ("method", "workers"), [("fork", 0), *product(["fork", "spawn", "forkserver"], [2])], ids=str
)
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed", "python"])
def test_each_rank_saves_under_every_launcher(
    tmp_path: Path, launcher: str, method: str, workers: int, who: str, number: signal.Signals, code: int
) -> None:
    check(tmp_path, launcher, method, workers, who, number, code)


@pytest.mark.parametrize(
    ("launcher", "asked"),
    [
        ("python", (1,)),
        *(pytest.param("torchrun", asked, marks=pytest.mark.nightly) for asked in ((0,), (1,), (0, 1))),
    ],
)
def test_all_nodes_save_when_some_are_asked_to_stop(
    tmp_path: Path, launcher: str, asked: tuple[int, ...]
) -> None:
    options = ("--nodes", "2", "--nproc-per-node", "1", "--launcher", launcher)
    script = script_for(launcher, tmp_path)
    with job(tmp_path, *options, command="simulate", script_path=script) as process:
        nodes = launchers_of(process.pid)
        for rank in asked:
            os.kill(nodes[rank], signal.SIGTERM)
        process.wait(LIMIT_S)
    assert saved(tmp_path) == 2, (tmp_path / "output").read_text()


SLOW = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
def save(path, seconds):
    with open(path, "wb") as file:
        file.write(b"part")
        file.flush()
        time.sleep(seconds)
folder = sys.argv[1] + "/"
if "slow" in sys.argv:
    save(folder + "step-1.pt", 3)
open(folder + "ready-0", "w").close()
while not asked: time.sleep(0.01)
if "cut" in sys.argv:
    save(folder + "step-2.pt", 600)
sys.exit(143)
"""


def stopped(tmp_path: Path, *words: str, grace_s: float) -> tuple[str, dict[str, Any]]:
    """Ask a script of one process to stop; return the launcher's output, and the outcome in its record."""
    script = tmp_path / "train.py"
    script.write_text(SLOW)
    options = ("--launcher", "python", "--grace-period", str(grace_s))
    with job(tmp_path, *options, ranks=1, script_path=script, words=words) as process:
        if "slow" in words:
            until(lambda: "[save-exceeds-grace" in (tmp_path / "output").read_text())
        process.terminate()
        process.wait(LIMIT_S)
    (record,) = (tmp_path / "logs").glob("train_*.json")
    return (tmp_path / "output").read_text(), json.loads(record.read_text())["outcome"]


def test_a_save_that_takes_longer_than_the_grace_period_is_warned_of(tmp_path: Path) -> None:
    output, outcome = stopped(tmp_path, "slow", grace_s=1)
    assert output.count("[save-exceeds-grace") == 1
    assert outcome["last_save_s"] > 1
    assert "[checkpoint-not-saved signal=SIGTERM step=1]" in output
    assert outcome["checkpoint_after_stop"]["saved"] is False


def test_a_save_that_the_grace_period_cut_off_is_reported_as_such(tmp_path: Path) -> None:
    output, outcome = stopped(tmp_path, "cut", grace_s=2)
    assert "[checkpoint-unfinished signal=SIGTERM step=2]" in output, output
    assert outcome["checkpoint_after_stop"]["unfinished"] is True


def test_a_job_that_saves_nothing_is_reported_as_such(tmp_path: Path) -> None:
    output, outcome = stopped(tmp_path, grace_s=20)
    assert "[checkpoint-missing signal=SIGTERM]" in output
    assert "[save-exceeds-grace" not in output
    assert outcome["checkpoint_after_stop"]["path"] is None


LEFT_S = 10.0  # of a Slurm job's time when the launcher starts


@pytest.mark.parametrize("launcher", ["python", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_ranks_save_before_slurms_end_time(tmp_path: Path, launcher: str) -> None:
    soon = {"SLURM_JOB_END_TIME": str(int(time.time() + LEFT_S))}
    ranks = 1 if launcher == "python" else 2
    options, script = launcher_options(launcher, tmp_path), script_for(launcher, tmp_path)
    with job(tmp_path, *options, ranks=ranks, variables=soon, script_path=script) as process:
        returned = process.wait(LIMIT_S)
    output = (tmp_path / "output").read_text()
    assert saved(tmp_path) == ranks, output
    assert output.count("[node-taken-away source=Slurm]") == 1
    assert returned in (138, 143)


def test_a_rank_without_a_handler_outlives_a_notice(tmp_path: Path) -> None:
    soon = {"SLURM_JOB_END_TIME": str(int(time.time() + LEFT_S))}
    script = tmp_path / "train.py"
    script.write_text(SLOW)
    with job(tmp_path, "--launcher", "python", ranks=1, script_path=script, variables=soon) as process:
        until(lambda: "[node-taken-away" in (tmp_path / "output").read_text())
        process.terminate()
        assert process.wait(LIMIT_S) == 143


@pytest.mark.nightly
def test_a_warning_of_one_node_reaches_the_ranks_of_all(tmp_path: Path) -> None:
    options = ("--nodes", "2", "--nproc-per-node", "1", "--launcher", "torchrun")
    with job(tmp_path, *options, command="simulate") as process:
        os.kill(launchers_of(process.pid)[1], signal.SIGUSR1)
        process.wait(LIMIT_S)
    assert saved(tmp_path) == 2, (tmp_path / "output").read_text()


@pytest.mark.nightly
def test_a_held_agent_does_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    options = launcher_options("torchrun", tmp_path)
    with job(tmp_path, *options, "--grace-period", "600", save_s=600) as process:
        own = descendants(process.pid)
        process.terminate()
        until(lambda: "[end-asked" in (tmp_path / "output").read_text())
        process.kill()
        process.wait(LIMIT_S)
    until(lambda: not any(alive(pid) for pid in own))
