from __future__ import annotations

import math
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.plan.recipes import TrainingNumbers, choose, read_numbers, read_recipes, scale
from platform_launch.project import project_root

RECIPES = read_recipes(project_root())


@pytest.mark.parametrize(
    ("gpus", "config", "yaml"),
    [
        (0, "taehv_config_small.py", "deepspeed_cpu.yaml"),
        (8, "taehv_config_h100.py", "deepspeed_8gpu.yaml"),
        (16, "taehv_config_16gpu_h100.py", "deepspeed_16gpu.yaml"),
        (1, "taehv_config_h100.py", "deepspeed_8gpu.yaml"),
        (12, "taehv_config_16gpu_h100.py", "deepspeed_16gpu.yaml"),
        (1024, "taehv_config_16gpu_h100.py", "deepspeed_16gpu.yaml"),
    ],
)
def test_the_number_of_gpus_chooses_config_and_yaml(gpus: int, config: str, yaml: str) -> None:
    recipe = choose(RECIPES.recipes, gpus)
    assert (recipe.config.name, recipe.deepspeed.name) == (config, yaml)


def test_every_file_that_a_recipe_names_exists() -> None:
    for recipe in RECIPES.recipes:
        assert recipe.config.is_file()
        assert recipe.deepspeed.is_file()
    assert RECIPES.script.is_file()


def test_every_shipped_config_states_its_numbers_as_literals() -> None:
    for recipe in RECIPES.recipes:
        numbers = read_numbers(recipe.config)
        assert numbers.batch_size is not None
        assert numbers.gradient_accumulation_steps is not None
        assert numbers.learning_rate is not None


def test_the_loader_of_the_h100_config_takes_over_a_gib_of_shared_memory_a_process() -> None:
    workers, ahead, batch, clip = 4, 2, 12, 12 * 480 * 720 * 3
    numbers = read_numbers(choose(RECIPES.recipes, 8).config)
    assert numbers.loader_gib == pytest.approx(workers * ahead * batch * clip / 2**30)


def test_half_the_gpus_keep_the_global_batch_by_accumulating_twice_as_long() -> None:
    scaling = scale(choose(RECIPES.recipes, 8), TrainingNumbers(8, 2, 1e-4), 4)
    assert scaling is not None
    assert scaling.gradient_accumulation_steps == 4
    assert scaling.global_batch == scaling.recipe_global_batch == 128
    assert scaling.learning_rate == pytest.approx(1e-4)


def test_more_gpus_than_the_batch_allows_raise_the_learning_rate_by_the_square_root() -> None:
    scaling = scale(choose(RECIPES.recipes, 16), TrainingNumbers(8, 1, 1e-4), 64)
    assert scaling is not None
    assert scaling.global_batch == 512
    assert scaling.learning_rate == pytest.approx(1e-4 * math.sqrt(4))
    assert "no recipe for 64 GPUs" in scaling.describe()


def test_a_listed_number_of_gpus_is_not_scaled() -> None:
    assert scale(choose(RECIPES.recipes, 8), TrainingNumbers(8, 2, 1e-4), 8) is None


def test_a_config_is_read_without_running_it(tmp_path: Path) -> None:
    config = tmp_path / "config.py"
    config.write_text("raise SystemExit('ran')\nconfig = Config(batch_size=3, learning_rate=1e-3, **extra)\n")
    assert read_numbers(config) == TrainingNumbers(3, None, 1e-3)


def test_a_config_that_is_not_python_is_refused_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "config.py"
    config.write_text("a = 1\nconfig = (\n")
    with pytest.raises(InputError, match=r"config\.py, line 2 is not Python"):
        read_numbers(config)


@pytest.mark.parametrize(
    "text", ["", "recipes: 3", "script: x\nrecipes: [{gpus: 8}]", "a: [", "script: x\nrecipes: []"]
)
def test_a_broken_recipes_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "recipes.yaml").write_text(text)
    with pytest.raises(InputError, match=r"recipes\.yaml"):
        read_recipes(tmp_path)
