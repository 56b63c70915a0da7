"""What follows from devices and log together: the restart, the exit code, and whether to try again where."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from platform_launch import events
from platform_launch.environment import Environment
from platform_launch.hardware import Gpu
from platform_launch.hardware.gpu_health import Xid
from platform_launch.health import quarantine
from platform_launch.health.faults import of_xids
from platform_launch.health.finding import Grade, NodeHealth, node_health
from platform_launch.health.quarantine import QuarantinedNode, quarantine_if_bad
from platform_launch.launch.conclusion import with_devices
from platform_launch.launch.exit_code import job_exit_code
from platform_launch.launch.node_ending import TrainingOutput
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome, UnwellNode
from platform_launch.rendezvous.restarts import FailedRun, NotAgain, NotAgainKind, is_young
from platform_launch.rendezvous.run.deciding import no_use
from platform_launch.supervise import Outcome
from platform_launch.why.answer.verdict import Verdict
from tests.conftest import FakeNvml
from tests.lab.nvml import fake

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"
BAD = UnwellNode(1, "gn1", NodeHealth(Grade.BAD, ("GPU 3: XID 79",)))
WORN = UnwellNode(2, "gn2", NodeHealth(Grade.SUSPECT, ("GPU 0: rows wait",)))
FAILED = NodeEnding(EndKind.FAILED, 0, "gn0", 1)


def test_nobody_restarts_on_a_bad_node_unless_a_spare_takes_its_place() -> None:
    assert no_use(FAILED, bad=(1, 2), replaced=(1,)) == NotAgain(NotAgainKind.BAD_NODE)
    assert no_use(FAILED, bad=(1,), replaced=(1,)) is None
    assert no_use(FAILED, bad=(), replaced=()) is None


def test_the_gpus_that_are_held_are_those_of_the_findings_however_many_reasons_are_told(
    tmp_path: Path,
) -> None:
    gpus = [Gpu(index, "H100", 80.0, f"GPU-{index}") for index in range(12)]
    xids = [Xid(index, code, 0.0) for index in range(1, 12) for code in (79, 31)]
    file = tmp_path / "quarantine.jsonl"
    assert quarantine_if_bad(file, Environment({}, hostname="gn7"), gpus, node_health(of_xids(xids)), "job")
    (held,) = quarantine.read(file)
    assert held.gpus == tuple(gpu.uuid for gpu in gpus[1:])


def test_a_job_that_must_be_mended_is_not_tried_again() -> None:
    mend = replace(FAILED, cause=Cause("package_missing", (), (), "no"))
    assert no_use(mend, (), ()) == NotAgain(NotAgainKind.JOB)
    assert no_use(mend, (1,), (1,)) is None
    assert no_use(replace(mend, cause=Cause("nccl", (), (), "another_node")), (), ()) is None


@pytest.mark.parametrize(
    ("raised", "retry"),
    [("ModuleNotFoundError: No module named 'foo'", "no"), ("ValueError: a bad clip", "")],
)
def test_an_exception_of_the_scripts_own_may_be_tried_again(raised: str, retry: str, tmp_path: Path) -> None:
    place = '  File "/job/train.py", line 3, in <module>\n    read()\n'
    text = f"Traceback (most recent call last):\n{place}{raised}\n"
    cause = TrainingOutput(tmp_path / "log", text.encode).why()
    assert cause is not None
    assert cause.retry == retry


@pytest.mark.parametrize(
    ("run", "young"), [((None, 20.0), True), ((3, 20.0), False), ((None, 9000.0), False)]
)
def test_a_run_that_came_somewhere_was_not_wrong_from_the_start(
    run: tuple[int | None, float], young: bool
) -> None:
    assert is_young(FailedRun(*run)) is young


def outcome(code: int) -> Outcome:
    return Outcome(code, None, 3.0, None, None, ())


@pytest.mark.parametrize(
    ("unwell", "rank", "code"), [((BAD,), 1, 78), ((BAD,), 0, 75), ((WORN,), 2, 1), ((), 0, 1)]
)
def test_only_the_bad_node_says_not_here_again(unwell: tuple[UnwellNode, ...], rank: int, code: int) -> None:
    assert job_exit_code(outcome(1), RunOutcome(1, FAILED, unwell=unwell), rank) == code


def test_a_node_that_finished_or_was_told_to_end_keeps_its_code() -> None:
    assert job_exit_code(outcome(0), RunOutcome(1, FAILED, unwell=(BAD,)), 1) == 0
    assert job_exit_code(outcome(143), RunOutcome(0, FAILED, unwell=(BAD,)), 1) == 143


def test_where_a_node_is_bad_no_log_says_otherwise() -> None:
    said = Verdict("cause", cause="illegal_memory_access", retry="no")
    told = with_devices(said, RunOutcome(1, FAILED, unwell=(BAD,)))
    assert told is not None
    assert told.retry == "another_node"
    assert "GPU 3: XID 79" in told.retry_reason
    assert with_devices(said, RunOutcome(1, FAILED, unwell=(WORN,))) is said


# As a driver does in mid-run: it says something else from now on.
_SCRIPT = """
import os, pathlib, sys
driver = pathlib.Path(os.environ["FAKE_NVML"])
new = driver.with_suffix(".mid")
new.write_text(driver.read_text() + sys.argv[1])
new.replace(driver)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("happens", "code", "said"), [(fake.xid(0, 79), 78, "node-bad"), (fake.xid(0, 31), 3, "nodes-well")]
)
def test_a_training_that_fails_on_a_gpu_that_failed_ends_with_78(
    happens: str, code: int, said: str, tmp_path: Path, fake_nvml: FakeNvml
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(MAIN), "run", "--launcher", "python", "--script", str(script)]
    file = tmp_path / "quarantine.jsonl"
    variables = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PLATFORM_LAUNCH_QUARANTINE": str(file)}
    done = subprocess.run(
        [*command, "--log-dir", str(tmp_path / "logs"), "--health-interval", "600", "--", f"{happens}\n"],
        env={**variables, **fake_nvml(*fake.h100s(1))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    [log] = (tmp_path / "logs").glob(f"*{events.SUFFIX}")
    assert said in [event.id for event in events.read(log) or ()]
    assert [node.gpus for node in quarantine.read(file)] == ([(fake.uuid(0),)] if code == 78 else [])


def test_a_node_in_quarantine_refuses_the_launch_by_its_name_or_its_gpu(
    tmp_path: Path, fake_nvml: FakeNvml
) -> None:
    script, file = tmp_path / "train.py", tmp_path / "quarantine.jsonl"
    script.write_text("print('trained')")
    quarantine.add(file, QuarantinedNode("gn7", 0.0, None, "XID 79", "job-1", (fake.uuid(1),)))
    command = [sys.executable, str(MAIN), "run", "--launcher", "python", "--script", str(script)]
    codes = {}
    for name, gpus in (("gn7", 1), ("gn8", 2), ("gn9", 1)):
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "SLURMD_NODENAME": name}
        options = ["--quarantine", str(file), "--log-dir", str(tmp_path / name), "--nproc-per-node", "1"]
        done = subprocess.run(
            [*command, *options],
            env={**env, **fake_nvml(*fake.h100s(gpus))},
            capture_output=True,
            text=True,
            check=False,
        )
        codes[name] = done.returncode
        assert ("XID 79, found by job job-1" in done.stderr) == bool(done.returncode), done.stderr
    assert codes == {"gn7": 78, "gn8": 78, "gn9": 0}
