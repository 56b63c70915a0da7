"""Accelerate's yaml files, read as accelerate reads them; one that would fail or mislead is refused."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.files import NotYamlError, not_yaml
from platform_launch.hardware import packages
from platform_launch.project import yaml_of
from platform_launch.text import Phrase, joined
from platform_launch.values import dataclass

# accelerate refuses these beside deepspeed_config_file (accelerate 1.15, DeepSpeedPlugin).
BELONGS_IN_JSON = (
    "zero_stage",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "zero3_save_16bit_model",
)

# accelerate launch starts these as one process, whatever the number (accelerate 1.15, launch_command).
_ONE_PROCESS_TYPES = frozenset({"NO", "MULTI_CPU"})
# Older names that accelerate converts (accelerate 1.15, BaseConfig.process_config).
_CONVERTED_KEYS = frozenset({"fp16", "dynamo_backend"})


@dataclass(frozen=True)
class AccelerateYaml:
    """The launcher's view of one yaml file of accelerate.

    ``uses_torchrun``: accelerate starts the processes through torchrun, not by itself. ``names_json``: the
    DeepSpeed settings are in a separate JSON file (``deepspeed_config_file``).
    """

    path: Path
    uses_deepspeed: bool
    uses_torchrun: bool = True
    names_json: bool = False
    gradient_accumulation_steps: int | None = None
    warnings: tuple[str, ...] = ()


def read_yaml(
    path: Path, *, nnodes: int, world_size: int, gpus: int = 0, of_user: bool = False
) -> AccelerateYaml:
    """Read and check one yaml for a job of ``nnodes`` nodes and ``world_size`` processes on ``gpus`` GPUs.

    ``of_user``: it is the user's own file, not a recipe's, which is scaled.
    Raises InputError if the file is missing, is not an accelerate config, has settings that the installed
    accelerate refuses, would start something else than the plan shows (one process, the CPU, some of the
    GPUs), would start DeepSpeed's pdsh launcher on several nodes, or has batch sizes that DeepSpeed rejects.
    """
    settings = _mapping(path)
    if "distributed_type" not in settings:
        raise InputError(
            Phrase(
                "{path} has no distributed_type: expected an accelerate config such as "
                "deepspeed/deepspeed_8gpu.yaml",
                path=path,
            ),
            "a DeepSpeed JSON goes inside it, as deepspeed_config: {deepspeed_config_file: …}",
        )
    # Without quotes NO is YAML's false, which accelerate takes for it.
    kind = "NO" if settings["distributed_type"] is False else str(settings["distributed_type"])
    _check_keys(path, settings, kind)
    kind = kind.upper()
    if nnodes > 1 and kind in _ONE_PROCESS_TYPES:
        raise InputError(
            Phrase(
                "{path}: distributed_type {kind}: on {nnodes} nodes accelerate would train on each node "
                "alone",
                path=path,
                kind=kind,
                nnodes=nnodes,
            ),
            "write DEEPSPEED, MULTI_GPU or FSDP; MULTI_GPU trains on CPU nodes too",
        )
    if world_size > 1 and kind in _ONE_PROCESS_TYPES:
        raise InputError(
            Phrase(
                "{path}: distributed_type {kind} starts one process regardless of num_processes, but "
                "{world_size} are planned",
                path=path,
                kind=kind,
                world_size=world_size,
            ),
            "write MULTI_GPU (it trains on CPU nodes too), DEEPSPEED or FSDP, or pass --nproc-per-node 1",
        )
    _check_devices(path, settings, gpus, world_size // nnodes)
    unused = _unused_count(path, settings, world_size) if of_user else []
    if kind != "DEEPSPEED":
        torchrun = kind not in _ONE_PROCESS_TYPES
        return AccelerateYaml(path, uses_deepspeed=False, uses_torchrun=torchrun, warnings=tuple(unused))
    inner = settings.get("deepspeed_config") or {}
    if not isinstance(inner, Mapping):
        raise InputError(
            Phrase("{path}: deepspeed_config is {inner}: expected a mapping", path=path, inner=repr(inner))
        )
    warnings = [*unused, *_check_launcher(path, inner, nnodes)]
    if "deepspeed_config_file" in inner:
        accumulation = _check_json(path, inner, settings, world_size)
    else:
        accumulation = _count(inner.get("gradient_accumulation_steps"), path, "gradient_accumulation_steps")
        _count(inner.get("zero_stage"), path, "zero_stage", minimum=0)  # only to refuse an invalid one
    return AccelerateYaml(
        path,
        uses_deepspeed=True,
        names_json="deepspeed_config_file" in inner,
        gradient_accumulation_steps=accumulation,
        warnings=tuple(warnings),
    )


def _check_keys(path: Path, settings: Mapping[str, object], kind: str) -> None:
    """Refuse settings that the installed accelerate refuses, before all nodes have connected."""
    if settings.get("compute_environment") == "AMAZON_SAGEMAKER":
        raise InputError(
            Phrase(
                "{path}: compute_environment AMAZON_SAGEMAKER submits a job instead of training", path=path
            ),
            "write LOCAL_MACHINE: the job runs on SageMaker already if this launcher was started there",
        )
    keys, kinds = _accelerate_knows()
    unknown = sorted(key for key in settings if keys and key not in keys | _CONVERTED_KEYS)
    if unknown:
        raise InputError(
            Phrase(
                "{path} has keys that the installed accelerate does not know, and refuses: {keys}",
                path=path,
                keys=joined(unknown),
            ),
            "correct or remove them; what belongs to DeepSpeed or FSDP goes under deepspeed_config or "
            "fsdp_config",
        )
    if kinds and kind not in kinds:
        raise InputError(
            Phrase(
                "{path}: distributed_type {kind!r}: the installed accelerate knows {known}",
                path=path,
                kind=kind,
                known=joined(sorted(kinds)),
            ),
            "write one of these, in capitals",
        )


def _accelerate_knows() -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys and distributed types of the installed accelerate; empty if it is not installed.

    They are read from its source: importing it would import torch.
    """
    origin = packages.find(("accelerate",))["accelerate"].origin
    if origin is None:
        return frozenset(), frozenset()
    keys = _names_in(origin.parent / "commands/config/config_args.py", ("BaseConfig", "ClusterConfig"))
    return keys, _names_in(origin.parent / "utils/dataclasses.py", ("DistributedType",))


@cache
def _names_in(source: Path, classes: tuple[str, ...]) -> frozenset[str]:
    """Return the names that classes define; empty if one of the classes is not found.

    Nothing else is parsed: all of accelerate's modules would take 15 ms.
    """
    names: set[str] = set()
    try:
        text = source.read_text(encoding="utf-8")
        for name in classes:
            found = re.search(rf"^class {name}\b.*?(?=^[^\s#]|\Z)", text, re.MULTILINE | re.DOTALL)
            (parsed,) = ast.parse(found[0] if found else "").body
            for line in parsed.body if isinstance(parsed, ast.ClassDef) else ():
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    names.add(line.target.id)
                elif isinstance(line, ast.Assign):
                    names |= {target.id for target in line.targets if isinstance(target, ast.Name)}
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(names)


def _check_devices(path: Path, settings: Mapping[str, object], gpus: int, nproc_per_node: int) -> None:
    """Refuse a yaml that would use other devices than the plan shows."""
    if settings.get("use_cpu") is True and gpus:
        raise InputError(
            Phrase("{path}: use_cpu is set, but the plan uses GPUs", path=path),
            "remove use_cpu, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on the CPU",
        )
    chosen = str(settings.get("gpu_ids") or "all")
    named = [entry for entry in chosen.split(",") if entry.strip()]
    if chosen != "all" and gpus and len(named) != nproc_per_node:
        raise InputError(
            Phrase(
                "{path}: gpu_ids {chosen} shows {named} of a node's GPUs to its {processes} processes",
                path=path,
                chosen=chosen,
                named=len(named),
                processes=nproc_per_node,
            ),
            Phrase(
                "pass --nproc-per-node {named}, or remove gpu_ids and choose with CUDA_VISIBLE_DEVICES",
                named=len(named),
            ),
        )


def _unused_count(path: Path, settings: Mapping[str, object], world_size: int) -> list[str]:
    """Warn that num_processes is not used: this launcher's value on the command line wins."""
    given = settings.get("num_processes")
    if not isinstance(given, int) or given in (-1, world_size):
        return []
    text = (
        "{name}: num_processes {given} is not used: {world_size} are started (--nproc-per-node changes that)"
    )
    return [Phrase(text, name=path.name, given=given, world_size=world_size)]


def _mapping(path: Path) -> Mapping[str, object]:
    try:
        loaded = yaml_of(path)
    except FileNotFoundError:
        raise InputError(Phrase("{path} does not exist", path=path), "check --deepspeed-config") from None
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error.strerror),
            "check --deepspeed-config",
        ) from error
    except NotYamlError as error:
        raise InputError(not_yaml(path, error.problem)) from error
    if not isinstance(loaded, Mapping):
        raise InputError(
            Phrase(
                "{path} contains {kind}: expected a mapping of accelerate's keys",
                path=path,
                kind=type(loaded).__name__,
            )
        )
    return {str(key): value for key, value in loaded.items()}


def _check_launcher(path: Path, inner: Mapping[str, object], nnodes: int) -> list[str]:
    launcher = inner.get("deepspeed_multinode_launcher")
    if launcher == "standard":
        return []
    shown = (
        Phrase("is not set (pdsh by default)")
        if launcher is None
        else Phrase("is {launcher}", launcher=repr(launcher))
    )
    if nnodes == 1:
        return [
            Phrase(
                "{name}: deepspeed_multinode_launcher {shown}; harmless on one node, refused on several",
                name=path.name,
                shown=shown,
            )
        ]
    raise InputError(
        Phrase(
            "{path}: deepspeed_multinode_launcher {shown}: on {nnodes} nodes each node would train alone",
            path=path,
            shown=shown,
            nnodes=nnodes,
        ),
        "write 'deepspeed_multinode_launcher: standard' under deepspeed_config",
    )


def _check_json(
    path: Path, inner: Mapping[str, object], settings: Mapping[str, object], world_size: int
) -> int | None:
    clashing = [key for key in BELONGS_IN_JSON if key in inner]
    if settings.get("mixed_precision") not in (None, "no"):
        clashing.append("mixed_precision")
    named = Path(str(inner["deepspeed_config_file"]))
    if clashing:
        raise InputError(
            Phrase(
                ("{path} sets both {keys} and deepspeed_config_file: accelerate refuses the combination"),
                path=path,
                keys=joined(clashing),
            ),
            Phrase("move them into {named}", named=named),
        )
    try:
        # accelerate opens it from the working directory, as written.
        config = json.loads(named.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            Phrase(
                "{path} names deepspeed_config_file {named!r}, which does not exist{where}",
                path=path,
                named=str(named),
                where=""
                if named.is_absolute()
                else Phrase(" in the working directory {here}", here=Path.cwd()),
            ),
            "write an absolute path: accelerate opens it from the working directory",
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(
            Phrase(
                "{named} (named by {path}) cannot be read as JSON: {problem}",
                named=named,
                path=path,
                problem=error,
            )
        ) from error
    if not isinstance(config, Mapping):
        raise InputError(
            Phrase("{named} contains {kind}: expected a JSON object", named=named, kind=type(config).__name__)
        )
    return _check_batches(named, config, world_size)


def _check_batches(path: Path, config: Mapping[str, object], world_size: int) -> int | None:
    """Apply DeepSpeed's rule: train_batch_size = micro batch × accumulation × processes."""
    train = _count(config.get("train_batch_size"), path, "train_batch_size")
    micro = _count(config.get("train_micro_batch_size_per_gpu"), path, "train_micro_batch_size_per_gpu")
    steps = _count(config.get("gradient_accumulation_steps"), path, "gradient_accumulation_steps")
    if train is None:
        return steps
    if micro is not None and steps is not None and train != micro * steps * world_size:
        raise InputError(
            Phrase(
                "{path}: train_batch_size {train} is not train_micro_batch_size_per_gpu {micro} × "
                "gradient_accumulation_steps {steps} × {world_size} processes = {product}",
                path=path,
                train=train,
                micro=micro,
                steps=steps,
                world_size=world_size,
                product=micro * steps * world_size,
            ),
            'set train_batch_size to that product, or to "auto"',
        )
    known = (micro or 1) * (steps or 1) * world_size
    if train % known:
        raise InputError(
            Phrase(
                "{path}: train_batch_size {train} cannot be divided by {known} (micro batch {micro} × "
                "accumulation {steps} × {world_size} processes)",
                path=path,
                train=train,
                known=known,
                micro=micro or Phrase("unset"),
                steps=steps or Phrase("unset"),
                world_size=world_size,
            ),
            'use a multiple of it, or "auto"',
        )
    return steps


def _count(value: object, path: Path, key: str, minimum: int = 1) -> int | None:
    """Read a whole number that DeepSpeed allows to be ``auto`` or absent."""
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(
            Phrase(
                "{path}: {key} is {value}: expected a whole number of at least {minimum} or auto",
                path=path,
                key=key,
                value=repr(value),
                minimum=minimum,
            )
        )
    return value
