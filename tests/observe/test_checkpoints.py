"""Checkpoints are known by their files, whoever writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.observe import checkpoints
from platform_launch.observe.checkpoints import (
    Checkpoint,
    CheckpointWatch,
    checkpoint_of,
    folders_named,
    listing,
)
from tests.lab.waiting import until


@pytest.mark.parametrize(
    ("file", "checkpoint", "step"),
    [
        ("/out/model.pt", "/out/model.pt", None),
        ("/out/model_step_100.pt", "/out/model_step_100.pt", 100),
        ("/out/epoch=3-step=900.ckpt", "/out/epoch=3-step=900.ckpt", 900),
        ("/out/checkpoint-12/optimizer.bin", "/out/checkpoint-12", 12),
        ("/out/checkpoint-12/trainer_state.json", "/out/checkpoint-12", 12),
        ("/out/global_step50/zero/mp_rank_00_model_states.pt", "/out/global_step50", 50),
        ("/out/iter_0001000/.metadata", "/out/iter_0001000", 1000),
        ("/out/ckpt/40/default/d/a1b2", "/out/ckpt/40", 40),
    ],
)
def test_a_file_belongs_to_a_checkpoint(file: str, checkpoint: str, step: int | None) -> None:
    assert checkpoint_of(Path(file)) == Checkpoint(Path(checkpoint), step)


@pytest.mark.parametrize(
    "file", ["/out/train.log", "/data/2024/shard.parquet", "/out/steps.txt", "/out/config.json"]
)
def test_other_files_are_no_checkpoints(file: str) -> None:
    assert checkpoint_of(Path(file)) is None


def test_folders_come_from_arguments_and_the_working_directory(tmp_path: Path) -> None:
    for name in ("out", "runs"):
        (tmp_path / name).mkdir()
    found = folders_named(["train.py", "--out", "out", f"--dir={tmp_path}/runs", "--lr", "1e-3"], tmp_path)
    assert found == [tmp_path / "out", tmp_path / "runs", tmp_path]


def test_a_listing_ends_in_a_large_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_MOST_ENTRIES", 10)
    for number in range(20):
        (tmp_path / f"step-{number}.pt").touch()
    assert len(listing([tmp_path])) == 10


# Writes for as long as its standard input is open.
WRITER = (
    "import sys\n"
    "with open(sys.argv[1], 'wb') as file:\n"
    "    file.write(b'part'); file.flush()\n"
    "    print('writes', flush=True)\n"
    "    sys.stdin.read()\n"
)


def writer(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writes\n"
    return process


def test_a_process_that_ended_tells_nothing_of_its_files(tmp_path: Path) -> None:
    with writer(tmp_path / "model.pt") as process:
        assert checkpoints.written_by(process.pid) == {tmp_path / "model.pt"}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert checkpoints.written_by(process.pid) is None


def test_a_save_is_seen_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SCAN_S", "_SAME_SAVE_S"):
        monkeypatch.setattr(checkpoints, name, 0.05)
    took: list[float] = []
    pids: list[int] = []
    watch = CheckpointWatch(lambda: pids, list, took.append)
    watch.start()
    path = tmp_path / "checkpoint-7" / "model.pt"
    path.parent.mkdir()
    with writer(path) as process:
        assert checkpoints.written_by(process.pid) == {path}
        assert checkpoints.written_by(os.getpid()) == set()
        pids.append(process.pid)
        until(lambda: watch._writing)
    until(lambda: took)
    watch.request()
    until(lambda: watch._before is not None)
    # Where it is kept was learned from the save: the script names no folder.
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "checkpoint-8" / "model.pt").touch()
    report = watch.report(killed=False, limit_s=60)
    assert report is not None
    assert (report.saved, report.path, report.step) == (True, str(tmp_path / "checkpoint-8"), 8)


def test_without_a_new_checkpoint_the_last_one_is_reported(tmp_path: Path) -> None:
    (tmp_path / "step-3.pt").touch()
    watch = CheckpointWatch(list, lambda: [tmp_path], lambda _seconds: None)
    watch.start()
    watch.request()
    until(lambda: watch._before is not None)
    report = watch.report(killed=False, limit_s=60)
    assert report is not None
    assert (report.saved, report.step, report.unfinished) == (False, 3, False)


def test_a_checkpoint_that_was_cut_off_is_unfinished(tmp_path: Path) -> None:
    pids: list[int] = []
    watch = CheckpointWatch(lambda: pids, lambda: [tmp_path], lambda _seconds: None)
    watch.start()
    watch.request()
    until(lambda: watch._before is not None)
    with writer(tmp_path / "step-9.pt") as process:
        pids.append(process.pid)
        until(lambda: watch._last)
        report = watch.report(killed=True, limit_s=60)
    assert report is not None
    assert (report.saved, report.unfinished, report.step) == (True, True, 9)


def test_nothing_is_reported_without_a_request(tmp_path: Path) -> None:
    watch = CheckpointWatch(list, lambda: [tmp_path], lambda _seconds: None)
    watch.start()
    assert watch.report(killed=False, limit_s=60) is None


def test_the_newest_checkpoint_written_since_the_start_is_found(tmp_path: Path) -> None:
    (tmp_path / "step-10.pt").touch()
    watch = CheckpointWatch(list, lambda: [tmp_path], lambda _seconds: None)
    watch.start()
    until(lambda: bool(watch._at_start))
    assert watch.newest_written(5.0) is None
    (tmp_path / "step-20.pt").touch()
    assert watch.newest_written(5.0) == Checkpoint(tmp_path / "step-20.pt", 20)
    watch.stop()
