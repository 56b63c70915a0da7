"""Weights outside of training: published files, the running average, parameters that ZeRO-3 divides."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from taehv_trainer.architecture import ARCHITECTURES, Architecture
from taehv_trainer.errors import TrainingError
from taehv_trainer.model import TAEHV


class AveragedWeights:
    """A copy of the model in float32 whose weights follow those in training as an exponential average."""

    def __init__(self, model: TAEHV, decay: float) -> None:
        self.model = copy.deepcopy(model).float().eval().requires_grad_(False)
        self.model.activation_checkpointing = False
        self._decay = decay

    @torch.no_grad()
    def update(self, source: TAEHV, step: int) -> None:
        """Take in the weights after step ``step`` (from 0). Early steps average over fewer steps."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averaged: list[Tensor] = list(self.model.parameters())
        with gathered(source.parameters()):
            # One kernel for all of them instead of one each.
            current = [parameter.detach().float() for parameter in source.parameters()]
            torch._foreach_lerp_(averaged, current, 1 - decay)


def gathered(parameters: Iterable[nn.Parameter], *, modified: bool = False) -> AbstractContextManager[object]:
    """Make parameters complete that ZeRO-3 divides among the processes; all processes must enter.

    With ``modified``, changes that rank 0 makes inside are kept.
    """
    parameters = list(parameters)
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    context: AbstractContextManager[object] = GatheredParameters(
        parameters, modifier_rank=0 if modified else None
    )
    return context


def load_weights(model: TAEHV, file: Path) -> None:
    """Load a state dict, such as a published one (.pth) or one of this trainer's (.safetensors).

    Raises TrainingError if the file is missing or does not fit the model.
    """
    state = read_state(file)
    found, own = architecture_of(state, file), model.architecture
    if found != own:
        different = [
            f"{name} {theirs} instead of {asdict(own)[name]}"
            for name, theirs in asdict(found).items()
            if theirs != asdict(own)[name]
        ]
        named = next((name for name, shape in ARCHITECTURES.items() if shape == found), None)
        raise TrainingError(
            f"{file} does not fit the model: it has {', '.join(different)}",
            f"pass --model {named}" if named else "check model and latent_channels",
        )
    model.load_state_dict(_without_unused_frames(state, model))


def load_model(file: Path) -> TAEHV:
    """Build the model that a state dict belongs to. Raises TrainingError if its shape is none of ours."""
    state = read_state(file)
    model = TAEHV(architecture_of(state, file))
    model.load_state_dict(_without_unused_frames(state, model))
    return model


def read_state(file: Path) -> dict[str, Tensor]:
    """Read a state dict; nothing but tensors is ever unpickled. Raises TrainingError if it is not one."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        detail = " ".join(str(error).split())[:300]
        raise TrainingError(
            f"{file} is not a state dict: {detail}", "expected .pth or .safetensors with tensors alone"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise TrainingError(f"{file} is not a state dict", "expected names and tensors alone")
    return state


def architecture_of(state: dict[str, Tensor], file: Path) -> Architecture:
    """Read off a state dict's names and shapes which architecture it belongs to.

    The decoder multiplies time as often as the encoder divides it: published files may hold more growth than
    is used. Raises TrainingError if the layers are not those of the base architecture.
    """
    if "taeh3" in file.stem.lower():
        raise TrainingError(
            f"{file} is a taeh3, which encodes a video in chunks of 17 frames: this trainer encodes it as a "
            "whole, and would get other latents",
            f"load one of the base shapes: {', '.join(ARCHITECTURES)}",
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    n_blocks = sum(1 for name in shapes if re.fullmatch(r"encoder\.\d+\.conv\.0\.weight", name)) // 3
    try:
        pools = [shapes[f"encoder.{2 + k * (n_blocks + 2)}.conv.weight"] for k in range(3)]
        width, n_in = shapes["encoder.0.weight"][:2]
        projections = [shapes[f"decoder.{3 + k * (n_blocks + 3) + n_blocks + 2}.weight"] for k in range(3)]
        first, second, third = (shape[0] for shape in projections)
        found = Architecture(
            latent_channels=shapes["decoder.1.weight"][1],
            patch_size=math.isqrt(n_in // 3),
            encoder_width=width,
            decoder_widths=(shapes["decoder.1.weight"][0], first, second, third),
            blocks=n_blocks,
            time_strides=(pools[0][1] // width, pools[1][1] // width, pools[2][1] // width),
        )
        with torch.device("meta"):
            expected = {name: tuple(t.shape) for name, t in TAEHV(found).state_dict().items()}
    except (KeyError, IndexError, ValueError, ZeroDivisionError, RuntimeError):
        expected = {}
    grown = {name for name in expected if _may_grow_unused_frames(name)}
    if expected.keys() != shapes.keys() or any(
        shapes[name] != shape and not (name in grown and shapes[name][0] % shape[0] == 0)
        for name, shape in expected.items()
    ):
        named = [kind for kind in ("super", "wide") if kind in file.stem.lower()]
        raise TrainingError(
            f"{file} does not hold a base TAEHV: "
            + (f"the published '{named[0]}' variants have" if named else "it has")
            + " other layers",
            f"load one of the base shapes: {', '.join(ARCHITECTURES)}",
        )
    return found


def _may_grow_unused_frames(name: str) -> bool:
    return name.startswith("decoder.") and name.count(".") == 3 and name.endswith(".conv.weight")


def _without_unused_frames(state: dict[str, Tensor], model: TAEHV) -> dict[str, Tensor]:
    """Published files may grow more frames in a stage than the model does: its last frame is the one used."""
    own = model.state_dict()
    return {
        name: tensor[-own[name].shape[0] :] if _may_grow_unused_frames(name) else tensor
        for name, tensor in state.items()
    }
