"""Checkpoints: whatever kills a process while it saves, ``latest`` names a whole one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taehv_trainer.checkpoints import Checkpoints, Progress, read_progress
from taehv_trainer.errors import TrainingError
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(ROOT / "examples" / "taehv")}
PARTS = ("weights.bin", "optimizer.bin")
N_CHANGES = 42  # of the folder, by the script below when nothing stops it

# Saves steps 1 to 4 and is killed by its own hand at the n-th change of the folder.
SAVE_UNTIL_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from taehv_trainer.checkpoints import Checkpoints, Progress

left = int(sys.argv[2])

def deadly(change):
    def instead(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*arguments, **options)
    return instead

for owner, name in ((Path, "rename"), (Path, "replace"), (Path, "write_text"), (Path, "write_bytes"),
                    (Path, "mkdir"), (shutil, "rmtree"), (os, "unlink"), (os, "rmdir")):
    setattr(owner, name, deadly(getattr(owner, name)))

def write(folder):
    for part in %r:
        (folder / part).write_bytes(b"x" * 1000)

checkpoints = Checkpoints(Path(sys.argv[1]), 2, finishes=True, wait=lambda: None)
for step in range(1, 5):
    checkpoints.save(Progress(step, step, 1), write)
"""


def open_checkpoints(folder: Path, limit: int = 2) -> Checkpoints:
    return Checkpoints(folder, limit, finishes=True, wait=lambda: None)


def write_parts(folder: Path) -> None:
    for part in PARTS:
        (folder / part).write_bytes(b"x" * 1000)


def test_saving_keeps_the_newest_up_to_the_limit(tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    for step in (10, 20, 30):
        checkpoints.save(Progress(step, step, 1), write_parts)
    assert checkpoints.names() == ["checkpoint-00000020", "checkpoint-00000030"]
    assert checkpoints.find("latest") == tmp_path / "checkpoint-00000030"


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    for reads_seen in (1, 2):
        checkpoints.save(Progress(5, reads_seen, 1), write_parts)
    latest = checkpoints.find("latest")
    assert latest is not None
    assert read_progress(latest, 1).reads_seen == 2


def test_an_empty_folder_has_no_latest_checkpoint(tmp_path: Path) -> None:
    assert open_checkpoints(tmp_path).find("latest") is None


def test_none_ignores_what_is_there(tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.save(Progress(1, 1, 1), write_parts)
    assert checkpoints.find("none") is None


def test_a_checkpoint_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="is no checkpoint"):
        open_checkpoints(tmp_path).find(str(tmp_path / "checkpoint-00000001"))


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    path = open_checkpoints(tmp_path).save(Progress(1, 1, 16), write_parts)
    with pytest.raises(TrainingError, match=r"of a job with 16 processes, this job has 8"):
        read_progress(path, 8)


def test_a_process_that_does_not_finish_leaves_the_folder_to_the_one_that_does(tmp_path: Path) -> None:
    other = Checkpoints(tmp_path, 2, finishes=False, wait=lambda: None)
    unfinished = tmp_path / ".checkpoint-00000007"
    unfinished.mkdir()
    other.save(Progress(7, 7, 2), write_parts)
    assert [path.name for path in tmp_path.iterdir()] == [unfinished.name]


def test_a_kill_at_any_moment_leaves_latest_naming_a_whole_checkpoint(tmp_path: Path) -> None:
    children = []
    for n in range(0, N_CHANGES + 2, 2):
        command = [sys.executable, "-c", SAVE_UNTIL_KILLED % (PARTS,), str(tmp_path / str(n)), str(n)]
        children.append((tmp_path / str(n), subprocess.Popen(command, env=ENV)))
    endings = set()
    for folder, child in children:
        endings.add(child.wait(timeout=LIMIT_S))
        latest = open_checkpoints(folder).find("latest") if folder.exists() else None
        if latest is not None:
            assert all((latest / part).stat().st_size == 1000 for part in PARTS)
            assert json.loads((latest / "progress.json").read_text())["step"] == int(latest.name[-8:])
        for name in open_checkpoints(folder).names():
            assert {path.name for path in (folder / name).iterdir()} == {*PARTS, "progress.json"}
        # And the next run can save over what the killed one left.
        open_checkpoints(folder).save(Progress(9, 9, 1), write_parts)
        assert open_checkpoints(folder).find("latest") == folder / "checkpoint-00000009"
    assert endings == {-signal.SIGKILL, 0}  # the last one was let through to the end
