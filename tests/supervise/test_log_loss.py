"""Losing the log file costs the log file, not the training."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.disk import disk, requires_mount
from tests.supervise.lab import Supervise, python


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with disk(tmp_path / "small", "size=64k") as folder:
        yield folder


def test_a_folder_that_cannot_be_made_loses_the_log_only(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = supervise("echo", "training", log_path=str(tmp_path / "file" / "logs" / "train.log"))
    outcome = run.finish()
    assert outcome["exit_code"] == 0
    assert outcome["log_path"] is None
    assert b"training\n" in run.output
    assert b"[WARN] cannot write the log any more" in run.output
    assert b"Not a directory; the job continues without it" in run.output


@requires_mount
def test_a_read_only_folder_loses_the_log_only(supervise: Supervise, mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    run = supervise("echo", "training", log_path=str(mounted / "logs" / "train.log"))
    assert run.finish()["log_path"] is None
    assert b"training\n" in run.output
    assert b"Read-only file system" in run.output


@requires_mount
def test_a_full_disk_is_told_once_and_the_output_goes_on(supervise: Supervise, mounted: Path) -> None:
    run = supervise(*python("for i in range(5000): print(i, 'x' * 80)"), log_path=str(mounted / "train.log"))
    assert run.finish()["log_path"] is None
    assert run.output.count(b"No space left on device") == 1
    assert [line for line in run.output.splitlines() if line.startswith(b"4999 ")]
    assert (mounted / "train.log").stat().st_size > 0


def test_a_device_that_is_always_full_loses_the_log_only(supervise: Supervise) -> None:
    run = supervise("echo", "training", log_path="/dev/full")
    assert run.finish()["exit_code"] == 0
    assert run.output.count(b"No space left on device") == 1
    assert b"training\n" in run.output


def test_a_full_disk_under_stdout_leaves_the_log(supervise: Supervise) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    run = supervise("echo", "training", stdout=full, stderr=full)
    os.close(full)
    assert run.finish()["exit_code"] == 0
    assert run.log.startswith("training\n")
    assert "output can no longer be written: No space left on device" in run.log
