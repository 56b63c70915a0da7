"""Checkpoints: whatever happens while one is written, the others stay, and damage is noticed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator

from taehv_trainer.checkpoints import Checkpoints, Progress, damage, read_progress
from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.resuming import changes, choose_checkpoint
from tests.lab.disk import requires_mount, small_disk
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(ROOT / "examples" / "taehv")}
FILES = {"ema.safetensors": {"w": torch.ones(300)}, "training.safetensors": {"w": torch.zeros(900)}}
N_CHANGES = 60  # of the folder, by the script below when nothing stops it

# Writes steps 1 to 4 and kills itself at the n-th change of the folder.
WRITE_UNTIL_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from taehv_trainer.checkpoints import Checkpoints, Progress

def deadly(change):
    def instead(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*arguments, **options)
    return instead

for owner, name in ((Path, "rename"), (Path, "replace"), (Path, "write_text"), (Path, "write_bytes"),
                    (Path, "mkdir"), (Path, "symlink_to"), (shutil, "rmtree"), (os, "unlink"), (os, "rmdir")):
    setattr(owner, name, deadly(getattr(owner, name)))

files = {"ema.safetensors": {"w": torch.ones(300)}, "training.safetensors": {"w": torch.zeros(900)}}
for n in map(int, sys.argv[2:]):
    if os.fork() == 0:
        left = n
        checkpoints = Checkpoints(Path(sys.argv[1]) / str(n), 2)
        for step in range(1, 5):
            checkpoints.write(Progress(step, step, 1), files)
        os._exit(0)
ends = {os.wait()[1] for _ in sys.argv[2:]}
print(sorted(ends))
"""


def open_checkpoints(folder: Path, limit: int = 2) -> Checkpoints:
    return Checkpoints(folder, limit)


def write(folder: Path, *steps: int, limit: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, limit)
    for step in steps:
        checkpoints.write(Progress(step, 2 * step, 1), FILES)
    return checkpoints


def latest(checkpoints: Checkpoints) -> Path | None:
    return choose_checkpoint(checkpoints, "latest", Accelerator(cpu=True))


def test_the_last_ones_up_to_the_limit_are_kept(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 10, 20, 30)
    assert checkpoints.names() == ["checkpoint-00000030", "checkpoint-00000020"]
    assert (tmp_path / "latest").resolve().name == "checkpoint-00000030"
    assert latest(checkpoints) == tmp_path / "checkpoint-00000030"


def test_a_run_that_went_back_to_an_earlier_step_keeps_what_it_writes(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 300, 400)
    write(tmp_path, 100, 200)
    assert checkpoints.names() == ["checkpoint-00000200", "checkpoint-00000100"]


def test_the_same_step_can_be_written_again(tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    for seen in (1, 2):
        path = checkpoints.write(Progress(5, seen, 1), FILES)
    assert read_progress(path).samples_seen == 2
    assert checkpoints.names() == ["checkpoint-00000005"]


def test_files_follow_the_umask(tmp_path: Path) -> None:
    write(tmp_path, 5)
    plain = tmp_path / "plain"
    plain.touch()
    for file in (tmp_path / "checkpoint-00000005").iterdir():
        assert file.stat().st_mode == plain.stat().st_mode


def test_an_empty_folder_starts_fresh(tmp_path: Path) -> None:
    assert latest(open_checkpoints(tmp_path)) is None
    assert choose_checkpoint(open_checkpoints(tmp_path), "none", Accelerator(cpu=True)) is None


@pytest.mark.parametrize("wanted", ["none", "another run's"])
def test_a_fresh_start_in_a_used_folder_is_refused(tmp_path: Path, wanted: str) -> None:
    checkpoints = write(tmp_path / "ours", 10)
    write(tmp_path / "theirs", 20)
    named = wanted if wanted == "none" else str(tmp_path / "theirs" / "checkpoint-00000020")
    with pytest.raises(
        TrainingError, match=r"already holds checkpoints of a run.*checkpoint-00000010"
    ) as refusal:
        choose_checkpoint(checkpoints, named, Accelerator(cpu=True))
    assert "--output-dir" in refusal.value.hint


def test_an_earlier_checkpoint_of_the_run_can_be_named(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 10, 20)
    named = tmp_path / "checkpoint-00000010"
    assert choose_checkpoint(checkpoints, str(named), Accelerator(cpu=True)) == named


def test_a_checkpoint_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="is not a usable checkpoint"):
        choose_checkpoint(open_checkpoints(tmp_path), str(tmp_path / "checkpoint-1"), Accelerator(cpu=True))


def truncate(checkpoint: Path) -> None:
    with (checkpoint / "training.safetensors").open("r+b") as file:
        file.truncate(1000)


def flip_a_bit(checkpoint: Path) -> None:
    file = checkpoint / "ema.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / "ema.safetensors").unlink()


def lose_progress(checkpoint: Path) -> None:
    (checkpoint / "progress.json").write_text('{"step": 20')


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (truncate, "training.safetensors has 1000 of"),
        (flip_a_bit, "ema.safetensors has changed"),
        (lose_a_file, "ema.safetensors"),
        (lose_progress, ""),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], reason: str
) -> None:
    checkpoints = write(tmp_path, 10, 20)
    harm(tmp_path / "checkpoint-00000020")
    assert latest(checkpoints) == tmp_path / "checkpoint-00000010"
    said = capsys.readouterr().out
    assert harm is lose_progress or f"checkpoint-00000020 is damaged: {reason}" in said or reason in said
    assert damage(tmp_path / "checkpoint-00000010") == ""


def test_a_dangling_link_is_not_in_the_way(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 10)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("checkpoint-00000099")
    assert latest(checkpoints) == tmp_path / "checkpoint-00000010"
    assert latest(write(tmp_path, 20)) == tmp_path / "checkpoint-00000020"


def test_nothing_but_damaged_checkpoints_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 10, 20)
    for name in checkpoints.names():
        truncate(tmp_path / name)
    with pytest.raises(TrainingError, match="none of the checkpoints in"):
        latest(checkpoints)


def test_what_changed_since_the_checkpoint_is_listed() -> None:
    saved = asdict(TrainConfig(batch_size=12, learning_rate=1e-4, output_dir="a"))
    progress = Progress(1, 1, 16, config=saved)
    now = TrainConfig(batch_size=12, learning_rate=2e-4, output_dir="b", holdout_fraction=0.2)
    lines = changes(progress, now, 8)
    assert "changed since the checkpoint: learning_rate 0.0001 -> 0.0002" in lines
    assert "changed since the checkpoint: 192 -> 96 clips per step" in lines
    assert any("may have been trained on before (holdout_fraction changed)" in line for line in lines)
    assert not any("output_dir" in line for line in lines)
    assert changes(progress, replace(now, **saved), 16) == []


@requires_mount
def test_a_full_disk_is_reported_with_path_and_bytes_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        checkpoints = write(disk, 10)
        big = {"training.safetensors": {"w": torch.zeros(400_000)}}
        for knows_free_space in (True, False):  # a quota is only noticed while writing
            if not knows_free_space:
                monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**40))
            with pytest.raises(
                TrainingError,
                match=r"00000020 cannot be written: [Nn]o space left"
                r".*of 1600000 bytes written, \d+ bytes free",
            ) as refusal:
                checkpoints.write(Progress(20, 40, 1), big)
            assert "earlier checkpoints are intact" in refusal.value.hint
        assert latest(checkpoints) == disk / "checkpoint-00000010"
        assert sorted(path.name for path in disk.iterdir()) == ["checkpoint-00000010", "latest"]


@takes_long
def test_a_kill_at_any_moment_leaves_complete_checkpoints(tmp_path: Path) -> None:
    moments = range(0, N_CHANGES + 3, 3)
    command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path), *map(str, moments)]
    ended = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert ended.stdout == f"[0, {int(signal.SIGKILL)}]\n"  # the last one was let through to the end
    for n in moments:
        checkpoints = open_checkpoints(tmp_path / str(n))
        for name in checkpoints.names():
            assert damage(checkpoints.folder / name) == ""
        # And the next run can write over what the killed one left.
        assert latest(write(checkpoints.folder, 9)) == checkpoints.folder / "checkpoint-00000009"
