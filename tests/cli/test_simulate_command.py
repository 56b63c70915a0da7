from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from platform_launch.helper import PACKAGE
from tests.lab.netns import requires_netns
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
        # An environment calls the same program python, python3 and python3.11.
        home = re.escape(str(Path(sys.executable).parent))
        assert re.search(rf"trained by {home}/python[0-9.]* node {rank}\n", done.stdout)


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
                *("--launcher", "python", "--script", script, "--log-dir", logs, "--verbose"),
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


@requires_netns
def test_without_a_loopback_interface_it_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    simulate = (sys.executable, "-m", "platform_launch", "simulate", "--launcher", "python")
    done = subprocess.run(
        ["unshare", "--net", *simulate, "--script", tmp_path / "train.py", "--log-dir", tmp_path / "logs"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 67, done.stdout + done.stderr
    assert "cannot connect to 127.0.0.1: Network is unreachable" in done.stderr


def test_a_package_in_an_archive_is_refused_at_once(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", PACKAGE.parent, PACKAGE.name)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from platform_launch.cli import main; sys.exit(main([]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, archive],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 67, done.stderr
    assert f"{archive}/platform_launch is not a folder" in done.stderr
