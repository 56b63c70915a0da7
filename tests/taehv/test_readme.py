"""The README's commands for a new user's folder of videos work as they are written."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.lab.forking import program
from tests.lab.needs import takes_long
from tests.taehv.conftest import MakeVideo

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "examples" / "taehv" / "README.md"
# The only change: fewer steps than the small config's 240.
SHORTER = ["--max-train-steps=4", "--warmup-steps=1", "--validation-clips=2"]


@takes_long
@pytest.mark.train
def test_a_new_users_folder_is_prepared_trained_on_and_evaluated(
    make_video: MakeVideo, tmp_path: Path
) -> None:
    for number in range(3):
        make_video(f"videos/{number}.mp4", 60 + number, height=96, width=128)
    for name in ("examples", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = [line.strip() for line in README.read_text().splitlines() if line.startswith("    python ")]
    assert len(commands) == 3
    said = []
    for number, command in enumerate(commands):
        _, script, *arguments = shlex.split(command)
        with program(
            *(script, *arguments, *(SHORTER if "train.py" in script else [])),
            folder=tmp_path,
            output=tmp_path / f"{number}.log",
            environment={"PATH": os.environ["PATH"]},
        ) as run:
            assert run.wait() == 0, run.said()
        said.append(run.said())
    assert "3 of 3 videos are in prepared" in said[0]
    assert "[SUCCESS] PSNR on unseen frames" in said[1]
    assert "mean of 3 videos: " in said[2]
    assert (tmp_path / "shown" / "2.mp4").exists()
