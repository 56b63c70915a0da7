"""Configs: what is shipped can be read without torch, and what cannot be meant is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taehv_trainer.config import TrainConfig, check, load_config
from taehv_trainer.errors import TrainingError
from taehv_trainer.flags import parse_arguments

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "taehv" / "train.py"
SHIPPED = sorted((ROOT / "configs").glob("taehv_config_*.py"))


def write(folder: Path, arguments: str) -> Path:
    file = folder / "config.py"
    file.write_text(f"from taehv_trainer.config import TrainConfig\nconfig = TrainConfig({arguments})\n")
    return file


def test_platform_recipes_keep_the_documented_settings() -> None:
    eight = load_config(ROOT / "configs" / "taehv_config_h100.py")
    sixteen = load_config(ROOT / "configs" / "taehv_config_16gpu_h100.py")
    for config, accumulation in ((eight, 2), (sixteen, 1)):
        assert (config.height, config.width, config.num_frames) == (480, 720, 12)
        assert (config.batch_size, config.gradient_accumulation_steps) == (12, accumulation)
        assert (config.learning_rate, config.max_train_steps) == (1e-4, 100_000)
        assert config.mixed_precision == "bf16"
        assert config.reconstruction_loss_weight == 20


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_reading_a_shipped_config_imports_no_torch(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from taehv_trainer.config import load_config;"
        "load_config(Path(sys.argv[1])); print('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(file)]
    env = {"PYTHONPATH": str(SCRIPT.parent)}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("learning_rat=1e-3", "learning_rat is no key of TrainConfig"),
        ("batch_size=0", "batch_size=0: expected at least 1"),
        ("batch_size='8'", "batch_size='8': expected int"),
        ("batch_size=True", "batch_size=True: expected int"),
        ("model='large'", "model='large': expected one of 'full', 'small'"),
        ("height=100", "height=100: expected a multiple of 8"),
        ("model='taeltx', height=488", "height=488: expected a multiple of 32"),
        ("model='taeltx', width=736, num_frames=12", "num_frames=12: expected a multiple of 8"),
        ("latent_channels=0", "latent_channels=0: expected at least 1"),
        ("clips_per_read=3, batch_size=8", "clips_per_read=3: expected a divisor of batch_size=8"),
        ("decoder_input='student'", "no effect without teacher_checkpoint or teacher_latents"),
        (
            "teacher_latents='y', encoder_loss_weight=1, horizontal_flip=False, num_frames=4",
            "expected a multiple of 4, at least 8",
        ),
        ("num_frames=10", "num_frames=10: expected a multiple of 4"),
        ("ema_decay=1.0", "ema_decay=1.0: expected a number from 0 to below 1"),
        ("max_train_steps=5, warmup_steps=5", "warmup_steps=5: expected less than max_train_steps=5"),
        ("encoder_loss_weight=0.1", "no effect without teacher_checkpoint or teacher_latents"),
        ("teacher_checkpoint='x.pth'", "encoder_loss_weight=0.0: expected a weight above 0"),
        (
            "teacher_checkpoint='x', teacher_latents='y', encoder_loss_weight=1, horizontal_flip=False",
            "only one of them can be the target",
        ),
        ("teacher_latents='y', encoder_loss_weight=1", "made from videos that are not mirrored"),
        ("min_learning_rate=1e-3, learning_rate=1e-3", "expected more than min_learning_rate=0.001"),
        ("resize_short_side=8", "expected no less than the smaller of height and width"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(tmp_path: Path, arguments: str, message: str) -> None:
    with pytest.raises(TrainingError, match=r"config\.py: ") as refusal:
        load_config(write(tmp_path, arguments))
    assert message in refusal.value.message
    assert refusal.value.hint


def test_a_misspelt_key_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as refusal:
        load_config(write(tmp_path, "gradient_acumulation_steps=2"))
    assert refusal.value.hint == "did you mean gradient_accumulation_steps?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no config"),
        ("config = (", "SyntaxError"),
        ("import nowhere_at_all", "nowhere_at_all"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.py").write_text(text)
    with pytest.raises(TrainingError, match=message):
        load_config(tmp_path / "config.py")


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "batch_size=8, max_train_steps=100")
    flags = ["--learning-rate", "2e-4", "--max-train-steps", "7", "--horizontal-flip", "false"]
    config = parse_arguments(["--config", str(file), *flags])
    assert config.learning_rate == 2e-4
    assert config.max_train_steps == 7
    assert config.horizontal_flip is False
    assert config.batch_size == 8


def test_numbers_that_may_be_left_out_are_numbers_by_flag_too(tmp_path: Path) -> None:
    flags = ["--resize-short-side", "512", "--latent-channels", "32"]
    config = parse_arguments(["--config", str(write(tmp_path, "")), *flags])
    assert (config.resize_short_side, config.latent_channels) == (512, 32)


def test_a_teacher_given_by_flag_makes_the_files_weight_effective(tmp_path: Path) -> None:
    file = write(tmp_path, "encoder_loss_weight=0.1")
    config = parse_arguments(["--config", str(file), "--teacher-checkpoint", "teacher.pth"])
    assert config.encoder_loss_weight == 0.1


def test_defaults_are_consistent() -> None:
    check(TrainConfig())


def test_the_script_says_an_error_in_two_lines_and_exits_with_66(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--config", str(write(tmp_path, "learning_rat=1"))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 66
    assert ended.stderr.splitlines() == [
        f"error: {tmp_path}/config.py: learning_rat is no key of TrainConfig",
        "hint: did you mean learning_rate?",
    ]
