"""Fewer nodes than were launched: gradient accumulation keeps the global batch where it is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.plan.accumulation import accumulation
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.plan.request import Request
from platform_launch.project import project_root
from platform_launch.topology import Overrides
from tests.plan.machines import job, machine

FOUR = {"WORLD_SIZE": "4", "RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SCRIPT_STEPS = "PLATFORM_LAUNCH_GRADIENT_ACCUMULATION"
ACCELERATE_STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


def plan(
    remaining: int | None,
    env: dict[str, str] | None = None,
    *,
    least: int = 1,
    gpus: int = 0,
    **changes: Any,
) -> LaunchPlan:
    values: dict[str, Any] = {
        "root": project_root(),
        "python": "python3",
        "temporary": "/tmp/nowhere",
        "default_log_dir": Path("logs"),
        "started": "20261129-000000",
        "overrides": Overrides(min_nodes=least, remaining=remaining, nproc_per_node=None if gpus else 1),
        **changes,
    }
    return build_plan(Environment({**FOUR, **(env or {})}), machine(gpus), Request(**values))


def exported(made: LaunchPlan) -> dict[str, str]:
    return {variable.name: variable.value for variable in made.env}


@pytest.mark.parametrize(
    ("steps", "nodes", "expected", "ratio"),
    [(1, 2, 2, 1.0), (2, 3, 3, 9 / 8), (3, 3, 4, 1.0), (1, 3, 1, 0.75)],
)
def test_accumulation_comes_as_close_to_the_global_batch_as_whole_steps_allow(
    steps: int, nodes: int, expected: int, ratio: float
) -> None:
    found = accumulation(steps, job(nodes, missing=4 - nodes))
    assert found.steps == expected
    assert found.batch_ratio == pytest.approx(ratio)


def test_the_recipe_of_all_nodes_stays_and_accumulates_longer() -> None:
    whole, half = plan(None, gpus=4, example="taehv"), plan(2, gpus=4, example="taehv")
    assert half.training.config == whole.training.config
    assert half.training.global_batch == whole.training.global_batch
    assert half.training.learning_rate == whole.training.learning_rate
    steps = half.training.gradient_accumulation_steps
    assert steps == 2 * (whole.training.gradient_accumulation_steps or 0)
    words = half.training.program.arguments
    assert words[words.index("--gradient-accumulation-steps") + 1] == str(steps)
    assert "keeps the global batch" in half.batch_note
    assert not whole.batch_note


def test_a_learning_rate_follows_a_batch_that_cannot_be_kept() -> None:
    three = plan(3, example="taehv")
    assert three.training.gradient_accumulation_steps == 1
    assert three.training.learning_rate == pytest.approx(3e-3 * 0.75**0.5)
    assert "75%" in three.batch_note


@pytest.mark.parametrize("name", [SCRIPT_STEPS, ACCELERATE_STEPS])
def test_a_script_of_ones_own_finds_its_accumulation_in_a_variable(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    script: Any = {"script": tmp_path / "train.py"}
    assert exported(plan(2, {name: "3"}, **script))[name] == "6"
    assert name not in exported(plan(None, {name: "3"}, **script)), "what the user set stays"
    with pytest.raises(InputError, match=f"{name}='many': expected a whole number of at least 1"):
        plan(None, {name: "many"}, **script)


def test_a_script_whose_accumulation_is_unknown_is_warned_of_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    script: Any = {"script": tmp_path / "train.py"}

    def warned(made: LaunchPlan) -> bool:
        return any(SCRIPT_STEPS in warning.text for warning in made.warnings)

    assert warned(plan(None, **script))
    assert "75% of before" in plan(3, **script).batch_note
    assert not warned(plan(None, {SCRIPT_STEPS: "1"}, **script))
    assert not warned(plan(None, least=4, **script)), "it never has fewer nodes"
