"""Evaluation of a user's own videos: what is printed is what the model does to each frame."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluate import evaluate
from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.model import TAEHV
from taehv_trainer.video import read_frames, read_index
from tests.lab.forking import program
from tests.lab.needs import takes_long
from tests.taehv.conftest import MakeVideo

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "taehv" / "evaluate.py"


def test_a_long_video_is_measured_as_if_it_was_reconstructed_as_a_whole(
    make_video: MakeVideo, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = TAEHV(ARCHITECTURES["small"]).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    video = make_video("a.mp4", 60)
    quality = evaluate(model, video, tmp_path / "shown.mp4")

    index = read_index(video)
    frames = torch.from_numpy(read_frames(video, index, (48, 64))).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        _, whole = model(frames[None])
    error = whole[0].clamp(0, 1) - frames[:57]
    psnr = -10 * error.square().mean((1, 2, 3)).log10()
    assert quality.frames == 57
    assert quality.psnr == pytest.approx(float(psnr.mean()), abs=1e-3)
    assert quality.temporal_error == pytest.approx(255 * float(error.diff(dim=0).abs().mean()), rel=1e-3)
    shown = read_index(tmp_path / "shown.mp4")
    assert (len(shown), shown.height, shown.width) == (57, 48, 128)
    left = read_frames(tmp_path / "shown.mp4", shown, (48, 128))[:, :, :64]
    assert np.abs(left[:, 20, 30, 0] - (np.arange(57) * 4.0 + 8)).max() < 6  # the original, frame by frame


@takes_long
def test_the_command_prints_and_writes_what_it_measured(make_video: MakeVideo, tmp_path: Path) -> None:
    make_video("videos/a.mp4", 20)
    make_video("videos/b/a.mp4", 20)
    (tmp_path / "videos" / "broken.mp4").write_bytes(b"no video" * 100)
    torch.save(TAEHV(ARCHITECTURES["small"]).state_dict(), tmp_path / "w.pth")
    arguments = (
        "--weights",
        str(tmp_path / "w.pth"),
        "--output",
        str(tmp_path / "out"),
        "--short-side",
        "32",
    )
    with program(
        *(str(SCRIPT), *arguments, str(tmp_path / "videos")),
        folder=tmp_path,
        output=tmp_path / "said",
        environment={"PATH": os.environ["PATH"]},
    ) as evaluating:
        assert evaluating.wait() == 0, evaluating.said()
    said = evaluating.said()
    assert "broken.mp4: left out: cannot be decoded" in said
    assert "mean of 2 videos: 34 frames, PSNR " in said
    measured = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert set(measured["videos"]) == {"a", "a-2"}
    assert sorted(path.name for path in (tmp_path / "out").glob("*.mp4")) == ["a-2.mp4", "a.mp4"]
