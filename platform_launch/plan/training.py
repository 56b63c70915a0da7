"""The configuration of a job's program: training config and accelerate yaml, by flag or by recipe."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError
from platform_launch.plan import recipes
from platform_launch.plan.accumulation import Accumulation, accumulation
from platform_launch.plan.deepspeed import AccelerateYaml, read_yaml
from platform_launch.plan.program import Program, choose_program, existing_file, named_file
from platform_launch.plan.request import AUTO, Form, Request
from platform_launch.text import Phrase, counted, joined
from platform_launch.topology import Topology
from platform_launch.values import dataclass

_STEPS_FLAG = "--gradient-accumulation-steps"
# The yaml for a user's own program, below the project's root.
PLAIN = "configs/accelerate_multi_gpu.yaml"


@dataclass(frozen=True)
class Training:
    """The program of a job with its configuration, and the rule that chose it.

    ``global_batch`` counts samples of one optimizer step in the whole job. The numbers are None if the
    config does not contain them; a user's own program has no config unless ``--config`` names one, and
    launchers other than accelerate have no yaml. ``accumulation``: the steps were fitted to the nodes that
    take part.
    """

    program: Program
    config: Path | None
    accelerate_yaml: AccelerateYaml | None
    rule: str
    gradient_accumulation_steps: int | None = None
    learning_rate: float | None = None
    global_batch: int | None = None
    loader_gib: float | None = None
    accumulation: Accumulation | None = None
    warnings: tuple[str, ...] = ()


def choose_training(
    request: Request, env: Environment, topology: Topology, *, nproc: int, with_gpus: bool
) -> Training:
    """Choose and check what to run with ``nproc`` processes per node, each with a GPU or none.

    If nodes are missing, the recipe is still that of all nodes, and gradient accumulation makes up for them.
    Raises InputError for files that are missing or would be refused later, UsageError if what to run is not
    named, or named twice.
    """
    program = choose_program(request, env)
    if request.started_by != "accelerate":
        return _without_yaml(request, program)
    table = recipes.read_recipes(request.root)
    world_size, launched = topology.nnodes * nproc, topology.launched * nproc
    gpus = launched if with_gpus else 0
    if program.source is None or program.source != table.script.resolve():
        return _program_of_ones_own(request, program, table, topology, gpus=gpus, world_size=world_size)
    recipe = _recipe(request, table, gpus)
    config = _named(request.config, "--config") or _of_recipe(recipe.config)
    numbers = recipes.read_numbers(config)
    scaling = recipes.scale(recipe, numbers, gpus) if request.config is None else None
    chosen: tuple[str, ...] = ()
    if scaling is not None:
        numbers = dataclasses.replace(
            numbers,
            gradient_accumulation_steps=scaling.gradient_accumulation_steps,
            learning_rate=scaling.learning_rate,
        )
        chosen = _as_arguments(numbers)
    numbers, kept = _for_missing_nodes(numbers, program, topology)
    yaml_path = _named(request.deepspeed_config, "--deepspeed-config") or _of_recipe(recipe.deepspeed)
    yaml = read_yaml(
        yaml_path,
        nnodes=topology.nnodes,
        world_size=world_size,
        gpus=world_size if with_gpus else 0,
        of_user=request.deepspeed_config is not None,
    )
    continued = _as_arguments(numbers) if topology.missing and kept is not None else ()
    return Training(
        program=_configured(program, config, chosen, continued),
        config=config,
        accelerate_yaml=yaml,
        rule=_rule(request, recipe, gpus),
        gradient_accumulation_steps=_accumulation(numbers, yaml, config),
        learning_rate=numbers.learning_rate,
        loader_gib=numbers.loader_gib,
        global_batch=_global_batch(numbers, world_size),
        accumulation=kept,
        warnings=(*((scaling.describe(),) if scaling is not None else ()), *yaml.warnings),
    )


def _for_missing_nodes(
    numbers: recipes.TrainingNumbers, program: Program, topology: Topology
) -> tuple[recipes.TrainingNumbers, Accumulation | None]:
    """Fit accumulation and learning rate to the nodes that take part; None if the accumulation is unknown."""
    steps = numbers.gradient_accumulation_steps
    if steps is None or any(word.split("=")[0] == _STEPS_FLAG for word in program.arguments):
        return numbers, None
    kept, rate = accumulation(steps, topology), numbers.learning_rate
    fitted = dataclasses.replace(
        numbers,
        gradient_accumulation_steps=kept.steps,
        learning_rate=None if rate is None else rate * kept.rate_ratio,
    )
    return fitted, kept


def _program_of_ones_own(
    request: Request,
    program: Program,
    table: recipes.Recipes,
    topology: Topology,
    *,
    gpus: int,
    world_size: int,
) -> Training:
    """Start a user's program as plain ``accelerate launch`` would, unless a yaml or a recipe is requested."""
    yaml_path = _named(request.deepspeed_config, "--deepspeed-config")
    rule: str = Phrase("--deepspeed-config given")
    overridden = False
    if yaml_path is None and (request.recipe is not None or request.strict):
        recipe = _recipe(request, table, gpus)
        yaml_path, rule, overridden = _of_recipe(recipe.deepspeed), _rule(request, recipe, gpus), True
    elif yaml_path is None:
        yaml_path = existing_file(request.root / PLAIN, Phrase("the default accelerate yaml"), "reinstall")
        rule = Phrase("the default: plain accelerate launch, without DeepSpeed (--recipe auto adds it)")
    yaml = read_yaml(
        yaml_path,
        nnodes=topology.nnodes,
        world_size=world_size,
        gpus=world_size if gpus else 0,
        of_user=request.deepspeed_config is not None,
    )
    config, steps = _named(request.config, "--config"), yaml.gradient_accumulation_steps
    kept = accumulation(steps, topology) if steps is not None and not yaml.names_json else None
    return Training(
        program=_configured(program, config),
        config=config,
        accelerate_yaml=yaml,
        rule=rule,
        gradient_accumulation_steps=kept.steps if kept is not None else steps,
        accumulation=kept,
        warnings=(*yaml.warnings, *(_overridden(yaml) if overridden else ())),
    )


def _without_yaml(request: Request, program: Program) -> Training:
    """Use the program as it is: recipes and yaml files are for accelerate."""
    if request.config is not None and program.form is Form.COMMAND:
        raise UsageError(
            ("--config is passed to a script or a module, so it cannot be combined with a command"),
            "write what the command needs after --",
        )
    config = _named(request.config, "--config")
    return Training(_configured(program, config), config, None, program.reason)


def _named(path: Path | None, flag: str) -> Path | None:
    """Return the file of a flag, None if it is not given."""
    return None if path is None else named_file(path, flag)


def _of_recipe(path: Path) -> Path:
    return existing_file(path, "configs/recipes.yaml", Phrase("reinstall, or restore the file"))


def _recipe(request: Request, table: recipes.Recipes, gpus: int) -> recipes.Recipe:
    """Return the recipe that is requested or fits. Raises InputError if --strict finds no exact one."""
    recipe = recipes.choose(table.recipes, gpus, None if request.recipe == AUTO else request.recipe)
    all_named = request.config is not None and request.deepspeed_config is not None
    if request.strict and recipe.gpus != gpus and not all_named:
        known = joined(str(known.gpus) for known in table.recipes)
        raise InputError(
            Phrase(
                "--strict: there is no recipe for {gpus}, only for {known}",
                gpus=counted(gpus, "GPU"),
                known=known,
            ),
            "pass --config and --deepspeed-config, or leave --strict out to scale the nearest",
        )
    return recipe


def _rule(request: Request, recipe: recipes.Recipe, gpus: int) -> str:
    """Return in one phrase why these files were chosen."""
    flags = {
        "--config": request.config,
        "--deepspeed-config": request.deepspeed_config,
        "--recipe": request.recipe,
    }
    given = [Phrase("{flag} given", flag=flag) for flag, value in flags.items() if value is not None]
    what = Phrase("no GPU") if recipe.gpus == 0 else Phrase("{gpus} GPUs", gpus=recipe.gpus)
    nearest = (
        Phrase(" (the nearest to {gpus})", gpus=gpus)
        if recipe.gpus != gpus and request.recipe in (None, AUTO)
        else ""
    )
    return joined([Phrase("recipe for {what}{nearest}", what=what, nearest=nearest), *given])


def _configured(
    program: Program, config: Path | None, chosen: tuple[str, ...] = (), continued: tuple[str, ...] = ()
) -> Program:
    """Return the program with the arguments of its config; the user's own come after those, so they win."""
    of_config = ("--config", str(config)) if config is not None else ()
    return dataclasses.replace(program, arguments=(*of_config, *chosen, *program.arguments, *continued))


def _as_arguments(numbers: recipes.TrainingNumbers) -> tuple[str, ...]:
    rate = () if numbers.learning_rate is None else ("--learning-rate", f"{numbers.learning_rate:g}")
    return (_STEPS_FLAG, str(numbers.gradient_accumulation_steps), *rate)


def _accumulation(numbers: recipes.TrainingNumbers, yaml: AccelerateYaml, config: Path | None) -> int | None:
    """Return the accumulation that will apply. The training config decides, unless there is a JSON.

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
    """Warn if a recipe's yaml changes the accumulation of a user's own script."""
    steps = yaml.gradient_accumulation_steps or 1
    if steps == 1:
        return ()
    fact = Phrase(
        "{yaml} sets gradient_accumulation_steps={steps}, which overrides the script's",
        yaml=yaml.path.name,
        steps=steps,
    )
    return (Phrase("{fact}; to change it, pass your own yaml with --deepspeed-config", fact=fact),)
