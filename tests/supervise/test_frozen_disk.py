"""A log on a file system that is frozen keeps the launcher from exiting, and the launcher reports it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.disk import requires_mount
from tests.lab.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "started").touch()
while not (folder / "go-on").exists(): time.sleep(0.05)
print("a line that the log cannot take", flush=True)
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in a file."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    made = subprocess.run(["mkfs.ext4", "-q", image], capture_output=True, check=False)
    loop = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if made.returncode or loop.returncode:
        pytest.skip(f"no loop device can be mounted here: {loop.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def launch(folder: Path, logs: Path) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = (
        sys.executable,
        "-m",
        "platform_launch",
        "run",
        "--launcher",
        "python",
        "--script",
        str(script),
    )
    return subprocess.Popen(
        [*command, "--log-dir", str(logs), "--", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@requires_mount
def test_a_log_on_a_frozen_file_system_is_reported_before_the_exit(tmp_path: Path, mounted: Path) -> None:
    process = launch(tmp_path, mounted / "logs")
    assert process.stdout is not None
    until(lambda: (tmp_path / "started").exists())
    subprocess.run(["fsfreeze", "--freeze", mounted], check=True)
    try:
        (tmp_path / "go-on").touch()
        output = ""
        while "[exit-blocked]" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        assert "training finished" in output
        assert process.poll() is None
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", mounted], check=True)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0


def test_a_log_on_a_disk_that_answers_is_not_reported(tmp_path: Path) -> None:
    process = launch(tmp_path, tmp_path / "logs")
    (tmp_path / "go-on").touch()
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "exit-blocked" not in output
