"""``--max-restarts`` on a node that meets no others: it starts again as several nodes would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.waiting import LIMIT_S

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"


def run(tmp_path: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(
        f"import os, signal\nstart = int(os.environ['PLATFORM_LAUNCH_RESTART_COUNT'])\n{code}"
    )
    return subprocess.run(
        [
            *(sys.executable, str(MAIN), "run", "--launcher", "python", "--no-doctor", *options),
            *("--script", str(tmp_path / "train.py"), "--log-dir", str(tmp_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


KILLED = "os.kill(os.getpid(), signal.SIGKILL)\n"


def test_a_job_that_was_killed_starts_again_until_it_finishes(tmp_path: Path) -> None:
    done = run(tmp_path, f"print('start', start)\nif start < 2:\n    {KILLED}", "--max-restarts", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [f"start {number}" in done.stdout for number in range(4)] == [True, True, True, False]
    assert "restart 2 of 3" in done.stdout + done.stderr


def test_without_progress_in_its_output_n_restarts_are_n_restarts(tmp_path: Path) -> None:
    done = run(tmp_path, KILLED, "--max-restarts", "4")
    said = done.stdout + done.stderr
    assert done.returncode == 137
    assert "restart 4 of 4" in said
    assert "not restarted: all 4 restarts are used" in said


def test_what_would_happen_again_is_not_started_again(tmp_path: Path) -> None:
    done = run(tmp_path, "raise ValueError('the data is wrong')\n", "--max-restarts", "3")
    said = done.stdout + done.stderr
    assert "fix the job first" in said
    assert "restart 1 of 3" not in said


def test_a_job_that_does_not_ask_for_it_never_starts_again(tmp_path: Path) -> None:
    done = run(tmp_path, KILLED)
    assert done.returncode == 137
    assert "not restarted" not in done.stdout + done.stderr


def test_a_newer_checkpoint_is_progress_although_the_same_step_is_printed(tmp_path: Path) -> None:
    saves = "print('step 7')\nopen(f'step-{(start + 1) * 10}.pt', 'w').close()\n"
    done = run(tmp_path, saves + KILLED, "--max-restarts", "3")
    assert "all 3 restarts are used" in done.stdout + done.stderr
    done = run(tmp_path, f"print('step 7')\n{KILLED}", "--max-restarts", "3")
    assert "the last two restarts made no progress" in done.stdout + done.stderr
