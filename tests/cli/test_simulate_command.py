from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.waiting import LIMIT_S


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
