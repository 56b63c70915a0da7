"""What will be trained: script, training config and accelerate yaml, by flag or by recipe."""

from __future__ import annotations

import dataclasses
import os
import stat
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.errors import InputError, UsageError, shown
from platform_launch.plan import recipes
from platform_launch.plan.deepspeed import AccelerateYaml, read_yaml
from platform_launch.plan.request import AUTO, Request
from platform_launch.text import Phrase, counted, joined

# What a launcher that reads no recipe starts when no script is named, below the project's root.
EXAMPLES = {"torchrun": "examples/ddp/train.py", "jax": "examples/jax/train.py"}
# The extra of this project with all that a shipped training needs, and what it imports of its own accord.
NEEDS = {"accelerate": ("train", ("av", "numpy", "PIL", "pytorch_msssim")), "jax": ("jax", ("numpy",))}
# What starts a script of the user's own, below the project's root.
PLAIN = "configs/accelerate_multi_gpu.yaml"
_SHIPPED = "no --script given: the shipped example trains"
_LARGEST_SCRIPT = 4 * 1024 * 1024


@dataclass(frozen=True)
class Training:
    """What will be trained and by which rule it was chosen; ``script_rule`` says who chose the script.

    ``global_batch`` counts samples of one optimizer step in the whole job. The numbers are None where the
    config does not say them; a script of the user's own has no config unless ``--config`` names one, and
    launchers other than accelerate have no yaml.
    """

    script: Path
    script_args: tuple[str, ...]
    config: Path | None
    accelerate_yaml: AccelerateYaml | None
    rule: str
    script_rule: str = ""
    gradient_accumulation_steps: int | None = None
    learning_rate: float | None = None
    global_batch: int | None = None
    loader_gib: float | None = None
    warnings: tuple[str, ...] = ()


def choose_training(request: Request, *, gpus: int, nnodes: int, world_size: int) -> Training:
    """Choose and check what to run on ``gpus`` GPUs (0: a CPU job) in the whole job.

    Raises InputError for files that are missing or would be refused later, UsageError where a script must be
    named.
    """
    check_arguments(request.script, request.script_args)
    if request.launcher != "accelerate":
        return _without_yaml(request)
    table = recipes.read_recipes(request.root)
    if request.script is not None and request.script.resolve() != table.script.resolve():
        return _script_of_ones_own(request, table, gpus=gpus, nnodes=nnodes, world_size=world_size)
    recipe = _recipe(request, table, gpus)
    config = _named(request.config, "--config") or _of_recipe(recipe.config)
    numbers = recipes.read_numbers(config)
    scaling = recipes.scale(recipe, numbers, gpus) if request.config is None else None
    if scaling is not None:
        numbers = dataclasses.replace(
            numbers,
            gradient_accumulation_steps=scaling.gradient_accumulation_steps,
            learning_rate=scaling.learning_rate,
        )
    yaml_path = _named(request.deepspeed_config, "--deepspeed-config") or _of_recipe(recipe.deepspeed)
    yaml = read_yaml(yaml_path, nnodes=nnodes, world_size=world_size, gpus=gpus)
    return Training(
        script=_of_recipe(table.script),
        script_args=_script_args(config, scaling, request),
        config=config,
        accelerate_yaml=yaml,
        rule=_rule(request, recipe, gpus),
        script_rule="" if request.script else _SHIPPED,
        gradient_accumulation_steps=_accumulation(numbers, yaml, config),
        learning_rate=numbers.learning_rate,
        loader_gib=numbers.loader_gib,
        global_batch=_global_batch(numbers, world_size),
        warnings=(*((scaling.describe(),) if scaling is not None else ()), *yaml.warnings),
    )


def _script_of_ones_own(
    request: Request, table: recipes.Recipes, *, gpus: int, nnodes: int, world_size: int
) -> Training:
    """Start a user's script as plain ``accelerate launch`` would, unless a yaml or a recipe is asked for."""
    yaml_path = _named(request.deepspeed_config, "--deepspeed-config")
    rule, overridden = "--script and --deepspeed-config given", False
    if yaml_path is None and (request.recipe is not None or request.strict):
        recipe = _recipe(request, table, gpus)
        yaml_path, rule, overridden = _of_recipe(recipe.deepspeed), _rule(request, recipe, gpus), True
    elif yaml_path is None:
        yaml_path = _existing(request.root / PLAIN, "the default for a script of one's own", "reinstall")
        rule = "--script given: as plain accelerate launch, without DeepSpeed (--recipe auto asks for it)"
    yaml = read_yaml(yaml_path, nnodes=nnodes, world_size=world_size, gpus=gpus)
    config = _named(request.config, "--config")
    return Training(
        script=_named(request.script, "--script") or table.script,
        script_args=_script_args(config, None, request),
        config=config,
        accelerate_yaml=yaml,
        rule=rule,
        gradient_accumulation_steps=yaml.gradient_accumulation_steps,
        warnings=(*yaml.warnings, *(_overridden(yaml) if overridden else ())),
    )


def _without_yaml(request: Request) -> Training:
    """Take the script as it is: recipes and yaml files are accelerate's."""
    example = EXAMPLES.get(request.launcher)
    if request.script is None and example is None:
        raise UsageError(
            Phrase("--launcher {launcher} has no default training", launcher=request.launcher),
            "name one with --script FILE",
        )
    config = _named(request.config, "--config")
    return Training(
        script=_named(request.script, "--script")
        or _existing(
            request.root / str(example),
            Phrase("the example of --launcher {launcher}", launcher=request.launcher),
        ),
        script_args=_script_args(config, None, request),
        config=config,
        accelerate_yaml=None,
        rule="--script given"
        if request.script
        else Phrase("the example of --launcher {launcher}", launcher=request.launcher),
        script_rule="" if request.script else _SHIPPED,
    )


def lacks_script(script: Path | str | None, arguments: Sequence[str]) -> bool:
    """Tell whether somebody forgot the script: the shipped trainings take options only."""
    return script is None and bool(arguments) and not arguments[0].startswith("-")


def check_arguments(script: Path | str | None, arguments: Sequence[str]) -> None:
    """Raise UsageError where somebody forgot --script."""
    if lacks_script(script, arguments):
        raise UsageError(
            Phrase(
                "no --script, and {argument} first behind --: expected the script as --script FILE",
                argument=shown(arguments[0]),
            ),
            "behind -- stand the script's own arguments; without --script a shipped example trains, "
            "which takes options only",
        )


def check_script(script: Path) -> None:
    """Raise InputError where this Python cannot read what --script names: all nodes would wait to say so."""
    with suppress(OSError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        with script.open("rb") as file:
            source = file.read(_LARGEST_SCRIPT + 1)
        if len(source) > _LARGEST_SCRIPT or b"\0" in source:
            return  # such as a zip application, which Python runs too
        warnings.simplefilter("ignore")
        try:
            compile(source, str(script), "exec", dont_inherit=True)
        except SyntaxError as error:
            version = sys.version.split()[0]
            where = Phrase(", line {line}", line=error.lineno) if error.lineno else ""
            line = Phrase(": {text}", text=shown(error.text.strip())) if error.text else ""
            raise InputError(
                Phrase(
                    "--script {script}{where}: Python {version} cannot read it: {problem}{line}",
                    script=script,
                    where=where,
                    version=version,
                    problem=error.msg,
                    line=line,
                ),
                "correct it, or use the Python that it needs; --script takes a Python file",
            ) from error


def _named(path: Path | None, flag: str) -> Path | None:
    """Return the file that a flag names, None where it was not given."""
    if path is None:
        return None
    if path == Path():  # what an unset variable in quotes leaves of it
        raise InputError(
            Phrase("{flag} names no file: expected a path, found nothing", flag=flag),
            "is a variable of the command empty?",
        )
    where = "" if path.is_absolute() else Phrase(", seen from the working directory {here}", here=Path.cwd())
    if os.path.isdir(path):  # noqa: PTH112 - a folder that may not be entered is an answer
        hint: str = Phrase("name the file in it: {flag} {path}/…", flag=flag, path=path)
    elif path.is_absolute():
        hint = "correct the path, or mount what it lies on: every node must see it under the same path"
    else:
        hint = "nodes may start elsewhere: name it by its absolute path"
    return _existing(path, Phrase("{flag}{where}", flag=flag, where=where), hint)


def _of_recipe(path: Path) -> Path:
    return _existing(path, "configs/recipes.yaml", "restore the file, or correct the recipe")


def _existing(path: Path, source: str, hint: str = "") -> Path:
    problem: str
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        problem = "does not exist"
    except (OSError, ValueError) as error:  # the second for a zero byte
        problem = Phrase("cannot be used ({problem})", problem=getattr(error, "strerror", error))
    else:
        if stat.S_ISREG(mode):
            return path.resolve()
        problem = "is a folder" if stat.S_ISDIR(mode) else "is no regular file"
    raise InputError(
        Phrase("{path} {problem}: expected a file ({source})", path=path, problem=problem, source=source),
        hint,
    )


def _recipe(request: Request, table: recipes.Recipes, gpus: int) -> recipes.Recipe:
    """Return the recipe that is asked for, or fits. Raises InputError where --strict finds no exact one."""
    recipe = recipes.choose(table.recipes, gpus, None if request.recipe == AUTO else request.recipe)
    all_named = request.config is not None and request.deepspeed_config is not None
    if request.strict and recipe.gpus != gpus and not all_named:
        known = ", ".join(str(known.gpus) for known in table.recipes)
        raise InputError(
            Phrase(
                "--strict: configs/recipes.yaml has no recipe for {gpus}, only for {known}",
                gpus=counted(gpus, "GPU"),
                known=known,
            ),
            "add a recipe, pass --config and --deepspeed-config, or leave --strict out to scale the nearest",
        )
    return recipe


def _rule(request: Request, recipe: recipes.Recipe, gpus: int) -> str:
    """Say in one phrase why these files were chosen."""
    flags = {
        "--script": request.script,
        "--config": request.config,
        "--deepspeed-config": request.deepspeed_config,
        "--recipe": request.recipe,
    }
    given = [Phrase("{flag} given", flag=flag) for flag, value in flags.items() if value is not None]
    what = "no GPU" if recipe.gpus == 0 else Phrase("{gpus} GPUs", gpus=recipe.gpus)
    nearest = (
        Phrase(" (the nearest to {gpus})", gpus=gpus)
        if recipe.gpus != gpus and request.recipe in (None, AUTO)
        else ""
    )
    return joined([Phrase("recipe for {what}{nearest}", what=what, nearest=nearest), *given])


def _script_args(config: Path | None, scaling: recipes.Scaling | None, request: Request) -> tuple[str, ...]:
    """Return the script's arguments; what the user wrote comes last, so that it wins."""
    chosen: tuple[str, ...] = ("--config", str(config)) if config is not None else ()
    if scaling is not None:
        chosen += ("--gradient-accumulation-steps", str(scaling.gradient_accumulation_steps))
        chosen += ("--learning-rate", f"{scaling.learning_rate:g}")
    return chosen + request.script_args


def _accumulation(numbers: recipes.TrainingNumbers, yaml: AccelerateYaml, config: Path | None) -> int | None:
    """Return the accumulation that will be in force. The training config decides, except against a JSON.

    accelerate takes no accumulation on the command line when the yaml names a DeepSpeed JSON.
    """
    wanted, written = numbers.gradient_accumulation_steps, yaml.gradient_accumulation_steps
    if wanted is not None and written not in (None, wanted) and yaml.names_json:
        raise InputError(
            Phrase(
                "gradient_accumulation_steps is {wanted} in {config} but {written} in the DeepSpeed JSON "
                "that {yaml} names",
                wanted=wanted,
                config=config,
                written=written,
                yaml=yaml.path,
            ),
            'make them equal, or write "auto" in the JSON',
        )
    return wanted or written


def _global_batch(numbers: recipes.TrainingNumbers, world_size: int) -> int | None:
    if numbers.batch_size is None:
        return None
    return numbers.batch_size * (numbers.gradient_accumulation_steps or 1) * world_size


def _overridden(yaml: AccelerateYaml) -> tuple[str, ...]:
    """Warn when the yaml of a recipe changes the accumulation of a script of the user's own."""
    steps = yaml.gradient_accumulation_steps or 1
    if steps == 1:
        return ()
    fact = Phrase(
        "{yaml} sets gradient_accumulation_steps={steps}, and accelerate puts it over the script's",
        yaml=yaml.path.name,
        steps=steps,
    )
    return (Phrase("{fact}; pass --deepspeed-config with a yaml of yours to decide it there", fact=fact),)
