"""Weights outside of training: published files, the running average, parameters that ZeRO-3 has divided."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

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
        with whole(source.parameters()):
            for averaged, current in zip(self.model.parameters(), source.parameters(), strict=True):
                averaged.lerp_(current.to(averaged.dtype), 1 - decay)


def whole(parameters: Iterable[nn.Parameter]) -> AbstractContextManager[object]:
    """Make parameters readable that ZeRO-3 keeps divided among the processes; all processes must enter."""
    parameters = list(parameters)
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    gathered: AbstractContextManager[object] = GatheredParameters(parameters)
    return gathered


def load_weights(model: TAEHV, file: Path) -> None:
    """Load a state dict, such as a published one (.pth) or one of this trainer's (.safetensors).

    Raises TrainingError when the file is missing or does not fit the model.
    """
    try:
        state = _read(file)
    except Exception as error:
        raise TrainingError(
            f"{file} is not a state dict: {error}", "expected .pth or .safetensors"
        ) from error
    try:
        model.load_state_dict(_without_unused_frames(state, model))
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise TrainingError(
            f"{file} does not fit the model: {detail}", "check model, latent_channels"
        ) from None


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def _without_unused_frames(state: dict[str, Tensor], model: TAEHV) -> dict[str, Tensor]:
    """Published files may grow more frames in a stage than the model does: its last frame is the one used."""
    own = model.state_dict()
    return {
        name: tensor[-own[name].shape[0] :]
        if name in own and name.startswith("decoder.") and name.endswith(".conv.weight")
        else tensor
        for name, tensor in state.items()
    }
