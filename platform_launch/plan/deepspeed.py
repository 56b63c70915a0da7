"""Accelerate's yaml files: read them, and refuse what would fail or silently train alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.files import not_yaml, yaml_values
from platform_launch.text import Phrase

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

# accelerate launch starts these without torchrun (accelerate 1.15, launch_command), so nodes never meet.
_ONE_NODE_TYPES = frozenset({"NO", "MULTI_CPU"})


@dataclass(frozen=True)
class AccelerateYaml:
    """What the launcher needs to know of one yaml file of accelerate.

    ``uses_torchrun``: accelerate starts the processes through torchrun, not by itself. ``names_json``: the
    DeepSpeed settings lie in a JSON file of their own (``deepspeed_config_file``).
    """

    path: Path
    uses_deepspeed: bool
    uses_torchrun: bool = True
    names_json: bool = False
    gradient_accumulation_steps: int | None = None
    warnings: tuple[str, ...] = ()


def read_yaml(path: Path, *, nnodes: int, world_size: int) -> AccelerateYaml:
    """Read and check one yaml for a job of ``nnodes`` nodes and ``world_size`` processes.

    Raises InputError when the file is missing, is not an accelerate config, would start DeepSpeed's pdsh
    launcher on several nodes, or holds batch sizes that DeepSpeed rejects.
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
    kind = str(settings["distributed_type"]).upper()
    if nnodes > 1 and kind in _ONE_NODE_TYPES:
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
    if kind != "DEEPSPEED":
        return AccelerateYaml(path, uses_deepspeed=False, uses_torchrun=kind not in _ONE_NODE_TYPES)
    inner = settings.get("deepspeed_config") or {}
    if not isinstance(inner, Mapping):
        raise InputError(
            Phrase("{path}: deepspeed_config is {inner}: expected a mapping", path=path, inner=repr(inner))
        )
    warnings = _check_launcher(path, inner, nnodes)
    if "deepspeed_config_file" in inner:
        accumulation = _check_json(path, inner, settings, world_size)
    else:
        accumulation = _count(inner.get("gradient_accumulation_steps"), path, "gradient_accumulation_steps")
        _count(inner.get("zero_stage"), path, "zero_stage", minimum=0)  # only to refuse what is none
    return AccelerateYaml(
        path,
        uses_deepspeed=True,
        names_json="deepspeed_config_file" in inner,
        gradient_accumulation_steps=accumulation,
        warnings=tuple(warnings),
    )


def _mapping(path: Path) -> Mapping[str, object]:
    import yaml

    try:
        loaded = yaml_values(path.read_bytes())
    except FileNotFoundError:
        raise InputError(Phrase("{path} does not exist", path=path), "check --deepspeed-config") from None
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error.strerror),
            "check --deepspeed-config",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(not_yaml(path, error)) from error
    if not isinstance(loaded, Mapping):
        raise InputError(
            Phrase(
                "{path} holds {kind}: expected a mapping of accelerate's keys",
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
        "is not set (pdsh by default)"
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
                "{path} sets {keys} beside deepspeed_config_file: accelerate refuses the pair",
                path=path,
                keys=", ".join(clashing),
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
            Phrase("{named} holds {kind}: expected a JSON object", named=named, kind=type(config).__name__)
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
