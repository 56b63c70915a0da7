"""Prepared data: the same frames, smaller and quick to seek, and the latents of the whole video."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from prepare_data import Wanted
from prepare_data import prepare as prepare_video
from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.clips import ClipDataset
from taehv_trainer.config import TrainConfig
from taehv_trainer.model import TAEHV
from taehv_trainer.sources import find_sources
from taehv_trainer.streaming import decode_in_parts, encode_in_parts
from taehv_trainer.video import UnreadableVideoError, read_index
from tests.lab.forking import program
from tests.lab.needs import takes_long
from tests.taehv.conftest import MakeVideo

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "taehv" / "prepare_data.py"


def prepare(tmp_path: Path, *flags: str, exit_code: int = 0) -> str:
    """Prepare the videos in ``raw``; return what it says."""
    with program(
        *(str(SCRIPT), "--data-root", str(tmp_path / "raw"), "--workers", "1"),
        *("--output", str(tmp_path / "out"), "--height", "32", "--width", "40", *flags),
        folder=tmp_path,
        output=tmp_path / "said",
        environment={"PATH": os.environ["PATH"]},
    ) as preparing:
        assert preparing.wait() == exit_code, preparing.said()
    return preparing.said()


@takes_long
def test_videos_and_latents_are_prepared_for_training_and_the_rest_is_named(
    make_video: MakeVideo, tmp_path: Path
) -> None:
    make_video("raw/a/b.mp4", 44, height=90, width=70)
    (tmp_path / "raw" / "broken.mp4").write_bytes(b"no video" * 100)
    torch.save(TAEHV(ARCHITECTURES["small"]).state_dict(), tmp_path / "teacher.pth")
    said = prepare(tmp_path, "--teacher-checkpoint", str(tmp_path / "teacher.pth"))
    assert "left out: cannot be decoded" in said
    assert "1 of 2 videos are in" in said
    index = read_index(tmp_path / "out/videos/a/b.mp4.mp4")
    assert (len(index), index.height, index.width) == (44, 52, 40)
    latents = load_file(tmp_path / "out/latents/a/b.mp4.mp4.safetensors")["latents"]
    assert latents.shape == (11, 16, 4, 5)
    config = TrainConfig(
        data_root=str(tmp_path / "out/videos"),
        teacher_latents=str(tmp_path / "out/latents"),
        encoder_loss_weight=1.0,
        horizontal_flip=False,
        height=32,
        width=40,
        num_frames=8,
        holdout_fraction=0.2,
    )
    clip = ClipDataset(find_sources(config), config)[0, 0][0]
    assert clip.latents is not None
    assert clip.latents.shape == (2, 16, 4, 5)
    again = prepare(tmp_path, "--teacher-checkpoint", str(tmp_path / "teacher.pth"))
    assert "b.mp4: was there" in again
    plain = tmp_path / "plain"
    plain.touch()
    for file in ("videos/a/b.mp4.mp4", "latents/a/b.mp4.mp4.safetensors"):
        assert (tmp_path / "out" / file).stat().st_mode == plain.stat().st_mode
    other = prepare(tmp_path, "--short-side", "64", exit_code=66)
    assert "was prepared with other settings: short_side 0 instead of 64" in other


def test_of_a_video_that_ends_too_early_nothing_is_left(make_video: MakeVideo, tmp_path: Path) -> None:
    video = make_video("raw/cut.mkv", 40)
    index = read_index(video)
    prepare_with = Wanted(tmp_path / "raw", tmp_path / "out", 32, 40, 0, 12, 16, None)
    too_long = replace(index, times=np.arange(120))
    with (
        patch("prepare_data.read_index", return_value=too_long),
        pytest.raises(UnreadableVideoError, match="ends after 40 of 120 frames"),
    ):
        prepare_video(video, prepare_with)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_a_folder_of_nothing_usable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "broken.mp4").write_bytes(b"no video" * 100)
    assert "none of 1 videos could be prepared" in prepare(tmp_path, exit_code=66)


@pytest.mark.parametrize("name", ["small", "taeltx"])
def test_latents_and_frames_made_in_parts_are_those_of_the_whole_video(name: str) -> None:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    teacher = TAEHV(architecture).eval()
    for parameter in teacher.parameters():
        torch.nn.init.normal_(parameter, std=0.05)  # blocks that do something with the frame before
    frames = np.random.default_rng(0).integers(0, 256, (107, 32, 32, 3), dtype=np.uint8)
    with torch.no_grad():
        whole = teacher.encode(torch.from_numpy(frames).permute(0, 3, 1, 2)[None] / 255)[0]
    parts = torch.cat(list(encode_in_parts(teacher, iter(frames), 24)))
    torch.testing.assert_close(parts, whole)
    with torch.no_grad():
        decoded = teacher.decode(whole[None])[0]
    parts = torch.cat(list(decode_in_parts(teacher, torch.split(whole, 4))))
    torch.testing.assert_close(parts, decoded)
