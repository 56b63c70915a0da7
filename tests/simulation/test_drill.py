"""`drill`: scripts with known mistakes, each beside the healthy one, and how starts are compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch.observe import HOOK
from platform_launch.simulation.drill_judge import (
    Baseline,
    FaultResult,
    LoggedStep,
    Mistake,
    NextStart,
    SeenStart,
    steps_in,
)
from tests.lab.waiting import LIMIT_S

SCRIPT = Path(__file__).parents[1] / "lab" / "forgetful.py"


def drill(folder: Path, *words: str, mistake: str = "none") -> tuple[int, Any]:
    """Return the exit code, and the document by fault."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "platform_launch", "drill", "--launcher", "python", "--format", "json"),
            *(*words, "--script", str(SCRIPT), "--log-dir", str(folder / "logs"), "--", "--mistake", mistake),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    return done.returncode, {"none": document["without_fault"]} | {
        one["fault"]: one for one in document["faults"]
    }


@pytest.mark.nightly
def test_a_healthy_script_survives_every_fault(tmp_path: Path) -> None:
    code, found = drill(tmp_path)
    assert code == 0
    assert {fault: found[fault]["outcome"] for fault in ("kill", "term", "save", "disk", "truncate")} == (
        dict.fromkeys(("kill", "term", "save", "disk", "truncate"), "resumed")
    )
    assert found["term"]["lost"] == 0
    assert found["truncate"]["resumed_at"] < found["kill"]["resumed_at"]
    assert not list((tmp_path / "logs").glob("*/work"))


def test_a_killed_rank_costs_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    code, found = drill(tmp_path, "--nodes", "1", "--fault", "kill")
    assert code == 0
    assert found["kill"]["resumed_at"] % 5 == 0
    assert found["kill"]["lost"] == found["kill"]["step_before"] - found["kill"]["resumed_at"]


@pytest.mark.parametrize(
    ("mistake", "fault", "outcome", "problems"),
    [
        ("saves-in-place", "save", "from-scratch", []),
        pytest.param("loads-what-is-there", "truncate", "loaded-damaged", [], marks=pytest.mark.nightly),
        pytest.param("never-resumes", "kill", "from-scratch", [], marks=pytest.mark.nightly),
        pytest.param(
            "resumes-without-optimizer", "kill", "resumed", ["loss-jumped"], marks=pytest.mark.nightly
        ),
        pytest.param(
            "resumes-without-sampler", "kill", "resumed", ["loss-jumped"], marks=pytest.mark.nightly
        ),
        pytest.param("ignores-sigterm", "term", "resumed", ["sigterm-ignored"], marks=pytest.mark.nightly),
        pytest.param(
            "dies-of-sigterm", "term", "resumed", ["not-saved-on-sigterm"], marks=pytest.mark.nightly
        ),
    ],
)
def test_a_mistake_is_found(
    mistake: str, fault: str, outcome: str, problems: list[str], tmp_path: Path
) -> None:
    code, found = drill(tmp_path, "--nodes", "1", "--fault", fault, "--grace-period", "2", mistake=mistake)
    assert code == 1
    assert (found[fault]["outcome"], found[fault]["problems"]) == (outcome, problems)


@pytest.mark.nightly
def test_a_save_that_waits_for_a_rank_that_does_not_come_is_a_hang(tmp_path: Path) -> None:
    code, found = drill(tmp_path, "--timeout", "20", mistake="saves-with-a-collective")
    assert code == 1
    assert found["none"]["hung"]
    assert found["none"]["steps"] == 5


def test_a_job_without_checkpoints_or_steps_is_refused(tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("print('nothing')")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "platform_launch", "drill", "--nodes", "1", "--launcher", "python"),
            *("--script", str(silent), "--log-dir", str(tmp_path / "logs")),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 66
    assert "error: the job printed no step: expected lines such as: step 12 loss 0.31" in done.stderr


STEPS = range(1, 31)


def start(*steps: int, first_loss: float = 1.0, saves: tuple[int, ...] = (), **more: Any) -> SeenStart:
    """Return a start whose loss at step n is ``first_loss`` / n."""
    return SeenStart(tuple(LoggedStep(step, loss=first_loss / step) for step in steps), saves, **more)


@pytest.fixture
def baseline() -> Baseline:
    return Baseline(start(*STEPS, saves=(10, 20), data={0: [[f"sample-{step}"] for step in STEPS]}))


def judged(baseline: Baseline, after: SeenStart, **more: Any) -> FaultResult:
    return baseline.result("kill", start(*range(1, 13), saves=(5, 10)), after, **more)


def test_a_start_that_goes_on_from_the_checkpoint_passes(baseline: Baseline) -> None:
    result = judged(baseline, start(*range(11, 21)))
    assert result.passed
    assert [str(line) for line in result.lines()] == ["resumed at step 10 (lost 2)"]


def test_a_start_at_the_first_step_is_from_scratch(baseline: Baseline) -> None:
    assert judged(baseline, start(*range(1, 11))).outcome is NextStart.FROM_SCRATCH


def test_a_start_past_the_intact_checkpoint_loaded_the_damaged_one(baseline: Baseline) -> None:
    after = start(*range(11, 21))
    assert judged(baseline, after, damaged=True, intact_at=10).outcome is NextStart.LOADED_DAMAGED
    assert judged(baseline, start(*range(6, 16)), damaged=True, intact_at=10).passed
    before = start(*range(1, 11), saves=(5,))
    assert baseline.result("save", before, after, damaged=True).outcome is NextStart.LOADED_DAMAGED
    assert baseline.result("save", before, start(*range(6, 16)), damaged=True).passed


def test_losses_are_compared_within_what_undisturbed_starts_differ(baseline: Baseline) -> None:
    other = start(*range(11, 21), first_loss=1.1)
    result = judged(baseline, other)
    assert result.problems == (Mistake.LOSS_JUMPED,)
    assert [str(line) for line in result.lines()][1] == (
        "loss jumped: 0.1 at step 11, 0.0909091 without the fault"
    )
    baseline.learn_noise(start(*range(1, 11), first_loss=1.05))
    assert judged(baseline, other).passed


def test_samples_that_were_seen_before_are_found(baseline: Baseline) -> None:
    again = [[f"sample-{step}"] for step in range(1, 11)]
    result = judged(baseline, start(*range(11, 21), data={0: again}))
    assert result.problems == (Mistake.DATA_REPEATED,)
    assert [str(line) for line in result.lines()][1] == (
        "data repeated: 100% of the samples were seen before"
    )


def test_samples_that_are_skipped_are_not_taken_for_repeated(baseline: Baseline) -> None:
    skipped = [[f"sample-{step}"] for step in range(1, 21)]
    result = judged(baseline, start(*range(11, 21), data={0: skipped}))
    assert result.passed
    assert result.repeated_share == 0.0


def test_a_next_start_that_fails_or_hangs_is_no_resume(baseline: Baseline) -> None:
    failed = judged(baseline, SeenStart(exit_code=1, reason="RuntimeError: bad archive"))
    assert [str(line) for line in failed.lines()] == [
        "the next start failed with exit code 1: RuntimeError: bad archive"
    ]
    assert judged(baseline, SeenStart(is_stuck=True)).outcome is NextStart.STUCK


def test_steps_that_begin_anew_with_each_epoch_are_counted_on() -> None:
    lines = [f"epoch {epoch} step {step} loss 0.5" for epoch in range(3) for step in range(10)]
    baseline = Baseline(SeenStart(tuple(steps_in("\n".join(lines))), (10, 20)))
    after = SeenStart(tuple(steps_in("\n".join(lines[20:]))))
    result = baseline.result("kill", SeenStart(tuple(steps_in("\n".join(lines[:24]))), (10, 20)), after)
    assert (result.outcome, result.lost) == (NextStart.RESUMED, 4)


def test_losses_are_read_as_frameworks_print_them() -> None:
    log = (
        "Step 20/100 | Loss: 0.41\n"
        " 30%|███       | 30/100 [00:10<00:20, 3.0it/s, loss=0.3]\n"
        " 40%|████      | 40/100 [00:13<00:20, 3.0it/s]\n"
        "{'loss': 2.5e-1, 'grad_norm': 1.2, 'epoch': 1}\n"
        "{'eval_loss': 9.0}\n"
    )
    assert [(one.step, one.loss) for one in steps_in(log)] == [(20, 0.41), (30, 0.3), (40, 0.25)]


@pytest.fixture
def noting(tmp_path: Path) -> Path:
    folder = tmp_path / "ranks"
    folder.mkdir()
    (folder / "note-data").touch()
    return folder


def test_a_rank_notes_its_samples_but_not_its_workers(noting: Path, tmp_path: Path) -> None:
    code = (
        "from torch.utils.data import DataLoader\nimport torch\n"
        "data = [{'x': torch.full((3,), float(n)), 'y': n} for n in range(6)]\n"
        "for workers in (0, 2):\n    for batch in DataLoader(data, batch_size=2, num_workers=workers): pass\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(HOOK),
        "PLATFORM_LAUNCH_OBSERVE": str(tmp_path),
        "PLATFORM_LAUNCH_DRILL": str(noting),
        "RANK": "3",
        "LOCAL_RANK": "0",
    }
    subprocess.run([sys.executable, "-c", code], env=env, timeout=LIMIT_S, check=True)
    batches = [line.split() for line in (noting / "3.data").read_text().splitlines()]
    assert [len(batch) for batch in batches] == [2] * 6
    assert batches[:3] == batches[3:]
    assert len({sample for batch in batches for sample in batch}) == 6
    assert len(list(noting.glob("*.rank"))) == 1
