from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.waiting import LIMIT_S, until


def test_the_interpreter_that_runs_the_command_is_the_one_that_trains(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print('trained by', sys.executable, 'node', os.environ['NODE_RANK'])")
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho another python3 is first on PATH >&2; exit 9\n")
    other.chmod(0o755)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "platform_launch", "simulate", "--nodes", "2", "--no-roll-call"),
            *("--launcher", "python", "--script", script, "--log-dir", tmp_path / "logs"),
        ],
        env={"PATH": f"{other.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"trained by {sys.executable} node {rank}" in done.stdout


def test_a_simulation_that_fails_beside_another_is_not_taken_for_it(tmp_path: Path) -> None:
    failing, lasting, logs = tmp_path / "failing.py", tmp_path / "lasting.py", tmp_path / "logs"
    failing.write_text("raise SystemExit(3)")
    go = tmp_path / "go"
    lasting.write_text(
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)"
    )

    def simulate(script: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "platform_launch", "simulate", "--nodes", "1"),
                *("--launcher", "python", "--script", script, "--log-dir", logs),
            ],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    first = simulate(lasting)
    try:
        until(lambda: list(logs.glob("train_*.log")))
        said, _ = simulate(failing).communicate(timeout=LIMIT_S)
        assert "[simulated-node-failed node=0]" in said
        go.touch()
        said, _ = first.communicate(timeout=LIMIT_S)
    finally:
        first.kill()
        first.wait(LIMIT_S)
    assert first.returncode == 0, said
    assert said.rstrip().endswith("[simulation-finished]")
