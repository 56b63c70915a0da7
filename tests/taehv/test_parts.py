"""Schedule, losses, averaged weights, quality, the picture and the report's memory."""

from __future__ import annotations

import copy
import math
import time
from typing import cast

import pytest
import torch

from taehv_trainer import picture, session
from taehv_trainer.adversary import Adversary
from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.clips import Clip
from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.metrics import compare, detail, psnr_db
from taehv_trainer.model import TAEHV
from taehv_trainer.nonfinite import skip_nonfinite_steps, where_it_began
from taehv_trainer.objective import Objective, latent_distance
from taehv_trainer.schedule import learning_rate_at
from taehv_trainer.tally import Tally
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
    model = TAEHV(ARCHITECTURES["small"])
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


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(TrainingError, match="wandb is not installed") as refusal:
        session.tracker_of(TrainConfig(tracker="wandb"))
    assert "pip install wandb" in refusal.value.hint
    assert session.tracker_of(TrainConfig(tracker="none")) is None


def test_waiting_for_data_counts_and_pauses_do_not() -> None:
    tally = Tally(torch.device("cpu"))
    with tally.waiting():
        time.sleep(0.05)
    waited = tally.data_wait_share()
    with tally.pausing():
        time.sleep(0.2)
    assert tally.data_wait_share() > 0.5 * waited > 0.1


def test_the_tally_means_over_passes_and_tells_which_steps_were_clipped() -> None:
    tally = Tally(torch.device("cpu"))
    for number in (1.0, 3.0):
        tally.forward_pass({"loss": torch.tensor(number), "mse": torch.tensor(0.1)})
        tally.step(torch.tensor(number), limit=2.0)
    means = tally.read()
    assert (means["loss"], means["clipped_share"]) == (2.0, 0.5)
    assert "encoder" not in means
    tally.step(5.0, limit=2.0)  # DeepSpeed says a plain number
    assert tally.read()["clipped_share"] == 1.0


def test_the_average_is_kept_in_float32_beside_bfloat16_weights() -> None:
    model = TAEHV(ARCHITECTURES["small"]).bfloat16()
    averaged = AveragedWeights(model, decay=0.999)
    averaged.update(model, 5000)
    assert averaged.model.dtype == torch.float32


def test_the_loss_weighs_reconstruction_and_latents() -> None:
    config = TrainConfig(
        reconstruction_loss_weight=20.0, encoder_loss_weight=0.1, teacher_checkpoint="teacher.pth"
    )
    objective = Objective(TAEHV(ARCHITECTURES["small"]), config)
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    latents = torch.randn(1, 2, 16, 2, 2)
    losses = objective(frames, latents)
    expected = 20 * losses["reconstruction"] + 0.1 * losses["encoder"]
    torch.testing.assert_close(losses["loss"], expected)
    torch.testing.assert_close(
        losses["encoder"], (objective.model.encode(frames / 255) - latents).square().mean()
    )
    torch.testing.assert_close(losses["latent_error"], losses["encoder"] / latents.var())


def test_the_decoder_learns_from_the_teachers_latents_and_the_encoder_from_them_alone() -> None:
    config = TrainConfig(encoder_loss_weight=1.0, teacher_checkpoint="teacher.pth")
    objective = Objective(TAEHV(ARCHITECTURES["small"]), config)
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    latents = torch.randn(1, 2, 16, 2, 2)
    losses = objective(frames, latents)
    decoded = objective.model.decode(latents)
    torch.testing.assert_close(losses["reconstruction"], (decoded - frames[:, :5] / 255).abs().mean())
    losses["reconstruction"].backward()
    assert all(p.grad is None for p in objective.model.encoder.parameters())


def test_on_request_the_decoder_learns_from_the_students_latents() -> None:
    config = TrainConfig(encoder_loss_weight=1.0, teacher_checkpoint="teacher.pth", decoder_input="student")
    objective = Objective(TAEHV(ARCHITECTURES["small"]), config)
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    losses = objective(frames, torch.randn(1, 2, 16, 2, 2))
    _, reconstruction = objective.model(frames / 255)
    torch.testing.assert_close(losses["reconstruction"], (reconstruction - frames[:, :5] / 255).abs().mean())


def test_a_first_latent_that_tells_of_frames_outside_the_clip_is_no_target() -> None:
    latents, target = torch.zeros(2, 3, 1, 1, 1), torch.ones(2, 3, 1, 1, 1)
    target[1, 0] = 100.0  # of the clip from the middle of a video
    assert latent_distance(latents, target, torch.tensor([False, True])) == 1.0
    assert latent_distance(latents, target) > 1000


def test_without_a_teacher_there_is_no_latent_loss() -> None:
    objective = Objective(TAEHV(ARCHITECTURES["small"]), TrainConfig(reconstruction_loss="mse"))
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    losses = objective(frames)
    assert set(losses) == {"loss", "reconstruction", "mse"}
    _, reconstruction = objective.model(frames / 255)
    torch.testing.assert_close(losses["loss"], (reconstruction - frames[:, :-3] / 255).square().mean())


def test_the_objective_runs_in_bfloat16_and_compares_in_float32() -> None:
    objective = Objective(TAEHV(ARCHITECTURES["small"]).bfloat16(), TrainConfig())
    losses = objective(torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8))
    assert losses["loss"].dtype == torch.float32
    losses["loss"].backward()


def test_quality_is_measured_against_the_frames_that_the_model_reconstructs() -> None:
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    reconstruction, values = compare(TAEHV(ARCHITECTURES["small"]).eval(), frames)
    mse = (reconstruction - frames[:, :5] / 255).square().mean().item()
    assert values["psnr"] == pytest.approx(-10 * math.log10(mse), abs=1e-4)
    assert -1 <= values["ssim"] <= 1


def test_a_blurred_reconstruction_is_less_sharp_than_its_video() -> None:
    frames = torch.rand(1, 2, 3, 32, 32)
    blurred = torch.nn.functional.avg_pool2d(frames[0], 3, 1, 1)[None]
    assert detail(torch.full_like(frames, 0.5)) == 0
    assert detail(blurred) < 0.1 * detail(frames)
    # One bright pixel: its own Laplacian is -4, that of its four neighbours 1.
    point = torch.zeros(1, 1, 3, 7, 7)
    point[..., 3, 3] = 1.0
    assert detail(point).item() == pytest.approx((16 + 4) / 25)


def test_an_adversary_learns_beside_the_objective_and_its_verdict_reaches_the_model() -> None:
    torch.manual_seed(0)
    adversary = Adversary(torch.device("cpu"))
    config = TrainConfig(adversarial_loss_weight=0.5)
    objective = Objective(TAEHV(ARCHITECTURES["small"]), config, adversary)
    names = {name for name, _ in objective.named_parameters()}
    assert names == {f"model.{name}" for name, _ in objective.model.named_parameters()}
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    before = {name: value.clone() for name, value in adversary.network.state_dict().items()}
    losses = objective(frames)
    torch.testing.assert_close(losses["loss"], losses["reconstruction"] + 0.5 * losses["adversarial"])
    losses["adversarial"].backward()
    assert all(p.grad is not None for p in objective.model.decoder[-1].parameters())
    learned = adversary.network.state_dict()
    assert not all(learned[name].equal(before[name]) for name in before)
    with torch.no_grad():
        objective(frames)
    weights = {name: value for name, value in learned.items() if "original" in name}
    assert all(adversary.network.state_dict()[name].equal(value) for name, value in weights.items())


def test_an_adversary_tells_noise_from_grey_and_goes_on_from_its_state() -> None:
    torch.manual_seed(0)
    one, other = (Adversary(torch.device("cpu")) for _ in range(2))
    made, real = torch.full((2, 2, 3, 16, 16), 0.5), torch.rand(2, 2, 3, 16, 16)
    for adversary in (one, other):
        for group in adversary.optimizer.param_groups:
            group["lr"] = 2e-3
    verdicts = [float(one.loss(made, real)) for _ in range(60)]
    assert verdicts[-1] > verdicts[0] + 0.5
    other.restore({name: value.clone() for name, value in one.state().items()})
    assert [float(other.loss(made, real)) for _ in range(3)] == [
        float(one.loss(made, real)) for _ in range(3)
    ]


def test_the_picture_shows_every_clip_twice_above_the_curve() -> None:
    white, black = torch.ones(5, 3, 16, 16), torch.zeros(5, 3, 16, 16)
    image = picture.draw([(white, black), (black, white)], [(0, 10.0), (100, 21.3)], mean_colour_psnr=13.0)
    pixels = image.convert("L")
    left, right = image.width // 4, image.width * 3 // 4
    assert [pixels.getpixel((x, y)) for y in (100, 230) for x in (left, right)] == [255, 0, 0, 255]


def test_what_is_not_finite_stays_out_of_the_means() -> None:
    tally = Tally(torch.device("cpu"))
    for number in (1.0, float("nan"), 3.0):
        tally.forward_pass({"loss": torch.tensor(number), "mse": torch.tensor(number / 10)})
        tally.step(torch.tensor(number), limit=2.0)
    means = tally.read()
    assert (means["loss"], means["gradient_norm"], means["clipped_share"]) == (2.0, 2.0, 0.5)
    assert math.isnan(tally.read()["gradient_norm"])


def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments() -> None:
    model = TAEHV(ARCHITECTURES["small"])
    adamw = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1, fused=True)
    skip_nonfinite_steps(adamw)
    for scale in (1.0, float("inf"), 1.0):
        before = copy.deepcopy((model.state_dict(), adamw.state_dict()["state"]))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        next(model.decoder.parameters()).grad[0] *= scale  # type: ignore[index]
        adamw.step()
        after = (model.state_dict(), adamw.state_dict()["state"])
        changed = any(not torch.equal(before[0][name], after[0][name]) for name in after[0])
        assert changed == math.isfinite(scale)
    assert {float(state["step"]) for state in adamw.state.values()} == {2.0}


def test_where_the_numbers_ceased_to_be_finite_is_found() -> None:
    torch.manual_seed(0)
    objective = Objective(TAEHV(ARCHITECTURES["small"]), TrainConfig())
    frames = torch.randint(0, 256, (1, 8, 3, 16, 16), dtype=torch.uint8)
    batch = Clip(frames, None, None, {})
    assert where_it_began(objective, batch, None) == ""
    with torch.no_grad():
        cast(torch.nn.Conv2d, objective.model.decoder[1]).weight.fill_(3e38)
    assert where_it_began(objective, batch, None).startswith("the output of model.decoder.1")
    targets = torch.full((1, 2, 16, 2, 2), float("nan"))
    assert where_it_began(objective, batch, targets) == "the teacher's latents"


def test_an_encoder_that_will_learn_a_teachers_latents_starts_at_zero() -> None:
    model = TAEHV(ARCHITECTURES["small"])
    frames = torch.rand(1, 8, 3, 16, 16)
    assert model.encode(frames).std() > 0.1
    model.start_latents_at_zero()
    assert not model.encode(frames).any()
