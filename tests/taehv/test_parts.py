"""Schedule, losses, averaged weights, quality, the picture and the report's memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from taehv_trainer import picture
from taehv_trainer.config import TrainConfig
from taehv_trainer.metrics import compare, psnr_db
from taehv_trainer.model import TAEHV
from taehv_trainer.objective import Objective
from taehv_trainer.schedule import learning_rate_at
from taehv_trainer.weights import AveragedWeights

SCHEDULED = TrainConfig(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=10, max_train_steps=110)


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (60, 0.55), (110, 0.1), (500, 0.1)],
)
def test_the_rate_warms_up_and_follows_a_cosine(step: int, rate: float) -> None:
    assert learning_rate_at(step, SCHEDULED) == pytest.approx(rate)


def test_psnr_of_a_tenth_of_the_range_is_20_db() -> None:
    assert psnr_db(0.01) == pytest.approx(20)
    assert psnr_db(0.0) == 100


def test_the_average_follows_the_weights_in_training() -> None:
    model = TAEHV("small")
    averaged = AveragedWeights(model, decay=0.9)
    start = next(averaged.model.parameters()).clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    for step in (0, 1000):  # the first average spans one step: decay 1/10
        averaged.update(model, step)
    expected = start + 1 - 0.1 * 0.9
    torch.testing.assert_close(next(averaged.model.parameters()), expected)
    assert not any(p.requires_grad for p in averaged.model.parameters())


def test_the_average_is_kept_in_float32_beside_bfloat16_weights() -> None:
    model = TAEHV("small").bfloat16()
    averaged = AveragedWeights(model, decay=0.999)
    averaged.update(model, 5000)
    assert averaged.model.dtype == torch.float32


def test_the_loss_weighs_reconstruction_and_latents() -> None:
    config = TrainConfig(
        reconstruction_loss_weight=20.0, encoder_loss_weight=0.1, teacher_checkpoint="teacher.pth"
    )
    objective = Objective(TAEHV("small"), config)
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    latents = torch.randn(1, 2, 16, 2, 2)
    losses = objective(frames, latents)
    expected = 20 * losses["reconstruction"] + 0.1 * losses["encoder"]
    torch.testing.assert_close(losses["loss"], expected)
    torch.testing.assert_close(
        losses["encoder"], (objective.model.encode(frames / 255) - latents).square().mean()
    )


def test_without_a_teacher_there_is_no_latent_loss() -> None:
    objective = Objective(TAEHV("small"), TrainConfig(reconstruction_loss="mse"))
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    losses = objective(frames)
    assert set(losses) == {"loss", "reconstruction", "mse"}
    _, reconstruction = objective.model(frames / 255)
    torch.testing.assert_close(losses["loss"], (reconstruction - frames[:, :-3] / 255).square().mean())


def test_the_objective_runs_in_bfloat16_and_compares_in_float32() -> None:
    objective = Objective(TAEHV("small").bfloat16(), TrainConfig())
    losses = objective(torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8))
    assert losses["loss"].dtype == torch.float32
    losses["loss"].backward()


def test_quality_is_measured_against_the_frames_that_the_model_reconstructs() -> None:
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    reconstruction, values = compare(TAEHV("small").eval(), frames)
    mse = (reconstruction - frames[:, :5] / 255).square().mean().item()
    assert values["psnr"] == pytest.approx(-10 * math.log10(mse), abs=1e-4)
    assert -1 <= values["ssim"] <= 1


def test_the_picture_shows_every_clip_twice_above_the_curve(tmp_path: Path) -> None:
    white, black = torch.ones(5, 3, 16, 16), torch.zeros(5, 3, 16, 16)
    file = tmp_path / "picture.png"
    picture.draw(file, [(white, black), (black, white)], [(0, 10.0), (100, 21.3)], mean_colour_psnr=13.0)
    with Image.open(file) as image:
        pixels = image.convert("L")
        left, right = image.width // 4, image.width * 3 // 4
        assert [pixels.getpixel((x, y)) for y in (100, 230) for x in (left, right)] == [255, 0, 0, 255]
