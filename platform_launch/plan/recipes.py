"""Which training config and accelerate yaml fit the hardware: the rules of ``configs/recipes.yaml``."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from pathlib import Path

from platform_launch.errors import InputError, shown
from platform_launch.project import yaml_of
from platform_launch.text import Phrase, counted, joined
from platform_launch.values import dataclass


@dataclass(frozen=True)
class Recipe:
    """One entry of recipes.yaml: what to use with ``gpus`` GPUs in the whole job."""

    name: str
    gpus: int
    config: Path
    deepspeed: Path


@dataclass(frozen=True)
class Recipes:
    """The whole of recipes.yaml. ``script`` is the training that the configs belong to."""

    script: Path
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True)
class TrainingNumbers:
    """The batch settings of a training config. Fields are None if they are not literals."""

    batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    learning_rate: float | None = None
    loader_gib: float | None = None  # of /dev/shm that one process' loader workers fill with batches


@dataclass(frozen=True)
class Scaling:
    """A recipe's numbers, fitted to another number of GPUs. Batch sizes count clips in the whole job."""

    recipe_gpus: int
    gpus: int
    gradient_accumulation_steps: int
    learning_rate: float
    global_batch: int
    recipe_global_batch: int

    def describe(self) -> str:
        """Describe the rule and its result in one line."""
        return Phrase(
            "no recipe for {gpus}: the one for {recipe_gpus} scaled: batch per GPU kept, gradient "
            "accumulation {steps}, global batch {batch} (recipe {recipe_batch}), learning rate "
            "{rate:g} (× square root of the change of the global batch)",
            gpus=counted(self.gpus, "GPU"),
            recipe_gpus=self.recipe_gpus,
            steps=self.gradient_accumulation_steps,
            batch=self.global_batch,
            recipe_batch=self.recipe_global_batch,
            rate=self.learning_rate,
        )


def read_recipes(root: Path) -> Recipes:
    """Read ``configs/recipes.yaml`` under the project's root. Raises InputError if it is invalid."""
    path = root / "configs" / "recipes.yaml"
    try:
        loaded = yaml_of(path)
        recipes = tuple(
            Recipe(str(entry["name"]), int(entry["gpus"]), root / entry["config"], root / entry["deepspeed"])
            for entry in loaded["recipes"]
        )
        script = root / loaded["script"]
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error.strerror),
            "reinstall, or restore the file",
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            Phrase("{path} is not a list of recipes: {problem}", path=path, problem=repr(error)),
            "expected 'script:' and 'recipes:' with entries of name, gpus, config and deepspeed",
        ) from error
    unique = min(len({recipe.gpus for recipe in recipes}), len({recipe.name for recipe in recipes}))
    if not recipes or unique != len(recipes):
        raise InputError(
            Phrase("{path}: expected at least one recipe, and no name or number of GPUs twice", path=path)
        )
    return Recipes(script, recipes)


def choose(recipes: tuple[Recipe, ...], gpus: int, name: str | None = None) -> Recipe:
    """Return the recipe called ``name``, else the one for ``gpus`` GPUs in the whole job, or the nearest.

    Nearest is by ratio. The recipe for 0 GPUs is only chosen for 0. Raises InputError when none is left.
    """
    if name is not None:
        named = next((recipe for recipe in recipes if recipe.name == name), None)
        if named is None:
            known = joined(recipe.name for recipe in recipes)
            raise InputError(
                Phrase(
                    "--recipe {name} is not a recipe: expected auto, {known}",
                    name=shown(name),
                    known=known,
                ),
                "auto selects the one that fits the number of GPUs",
            )
        return named
    if gpus == 0:
        candidates = [recipe for recipe in recipes if recipe.gpus == 0]
    else:
        candidates = [recipe for recipe in recipes if recipe.gpus > 0]
    if not candidates:
        kind = "GPUs" if gpus else Phrase("a machine without GPUs")
        raise InputError(Phrase("there is no recipe for {kind}", kind=kind), "pass --config")
    return min(candidates, key=lambda r: (abs(math.log(gpus / r.gpus)) if gpus and r.gpus else 0.0, -r.gpus))


def scale(recipe: Recipe, numbers: TrainingNumbers, gpus: int) -> Scaling | None:
    """Fit a recipe to another number of GPUs by the rule in recipes.yaml, or None when it already fits.

    Raises InputError if the three numbers are not literals in the config.
    """
    if recipe.gpus == gpus or not (recipe.gpus and gpus):  # by name, a CPU's recipe fits any machine
        return None
    batch, steps, rate = numbers.batch_size, numbers.gradient_accumulation_steps, numbers.learning_rate
    if batch is None or steps is None or rate is None:
        raise InputError(
            Phrase(
                "{config} does not state batch_size, gradient_accumulation_steps and learning_rate as "
                "plain numbers: it cannot be scaled from {recipe_gpus} to {gpus}",
                config=recipe.config,
                recipe_gpus=recipe.gpus,
                gpus=counted(gpus, "GPU"),
            ),
            "write them as literals, or pass --config with one made for this number of GPUs",
        )
    wanted = recipe.gpus * batch * steps
    fitted_steps = max(1, round(wanted / (gpus * batch)))
    fitted = gpus * batch * fitted_steps
    return Scaling(
        recipe_gpus=recipe.gpus,
        gpus=gpus,
        gradient_accumulation_steps=fitted_steps,
        learning_rate=rate * math.sqrt(fitted / wanted),
        global_batch=fitted,
        recipe_global_batch=wanted,
    )


def read_numbers(path: Path) -> TrainingNumbers:
    """Read the batch settings of a training config. Raises InputError as :func:`read_literals`."""
    values = read_literals(path)
    return TrainingNumbers(
        batch_size=_whole(values, "batch_size"),
        gradient_accumulation_steps=_whole(values, "gradient_accumulation_steps"),
        learning_rate=_real(values, "learning_rate"),
        loader_gib=_loader_gib(values),
    )


def _loader_gib(values: Mapping[str, object]) -> float | None:
    """Return what two batches of uint8 RGB frames a worker take: torch's loader works that far ahead."""
    keys = ("num_workers", "batch_size", "num_frames", "height", "width")
    numbers = [_whole(values, key) for key in keys]
    return None if None in numbers else 2 * 3 * math.prod(n for n in numbers if n is not None) / 2**30


def read_literals(path: Path) -> dict[str, object]:
    """Read the literal keyword arguments of ``config = …(…)`` in a training config, without running it.

    Raises InputError when the file is missing or is not Python.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except FileNotFoundError:
        raise InputError(Phrase("{path} does not exist", path=path), "check --config") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error), "check --config"
        ) from error
    except SyntaxError as error:
        raise InputError(
            Phrase(
                "{path}, line {line} is not Python: {problem}",
                path=path,
                line=error.lineno,
                problem=error.msg,
            )
        ) from error
    keywords: dict[str, object] = {}
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Call)
            and any(isinstance(t, ast.Name) and t.id == "config" for t in statement.targets)
        ):
            keywords = {k.arg: _literal(k.value) for k in statement.value.keywords if k.arg is not None}
    return keywords


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


def _whole(values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _real(values: Mapping[str, object], key: str) -> float | None:
    value = values.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
