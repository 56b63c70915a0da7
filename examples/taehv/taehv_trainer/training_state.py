"""Weights and optimizer state as complete float32 tensors, whatever divides them among processes.

A checkpoint of these can be resumed by any number of processes and under any stage of ZeRO: DeepSpeed's own
checkpoints hold one part per process and fit that number only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from taehv_trainer.errors import TrainingError
from taehv_trainer.weights import gathered

_MOMENTS = ("exp_avg", "exp_avg_sq")


@torch.no_grad()
def collect(model: nn.Module, adamw: torch.optim.Optimizer, *, keep: bool) -> dict[str, Tensor]:
    """Return ``{"weight.NAME", "exp_avg.NAME", "exp_avg_sq.NAME", "updates"}`` on the CPU.

    All processes must call this, since ZeRO's parts are gathered; those that do not ``keep`` get {}.
    """
    updates = next((state["step"] for state in adamw.state.values() if "step" in state), torch.zeros(()))
    collected = {"updates": torch.as_tensor(updates, dtype=torch.float32).reshape(1).cpu()}
    for (name, parameter), master in zip(model.named_parameters(), _masters(model, adamw), strict=True):
        for kind in ("weight", *_MOMENTS):
            if kind != "weight" and not adamw.state:
                tensor = torch.zeros(getattr(parameter, "ds_shape", parameter.shape))
            elif master is None:
                tensor = _gather(parameter, kind)
            else:
                tensor = master if kind == "weight" else adamw.state[master][kind]
            if keep:
                collected[f"{kind}.{name}"] = tensor.detach().float().cpu().contiguous()
    return collected if keep else {}


@torch.no_grad()
def restore(
    model: nn.Module, adamw: torch.optim.Optimizer, zero: Any, collected: Mapping[str, Tensor]
) -> None:
    """Put back what `collect` returned; all processes must call this with the same tensors.

    ``zero`` is DeepSpeed's optimizer around ``adamw``, if there is one.
    """
    masters = _masters(model, adamw)
    _create_moments(adamw, zero, collected["updates"])
    parameters = list(model.parameters())
    with gathered(parameters, modified=True):
        for (name, parameter), master in zip(model.named_parameters(), masters, strict=True):
            value = collected[f"weight.{name}"].to(parameter.device)
            if value.shape != parameter.shape:
                raise TrainingError(
                    f"the checkpoint's {name} has shape {tuple(value.shape)}, "
                    f"the model's {tuple(parameter.shape)}",
                    "resume with the model and latent_channels of the checkpoint",
                )
            parameter.copy_(value)
            if master is not None:
                master.copy_(value)
    for (name, parameter), master in zip(model.named_parameters(), masters, strict=True):
        for kind in _MOMENTS:
            value = collected[f"{kind}.{name}"].to(parameter.device)
            if master is None:
                _scatter(parameter, kind, value)
            else:
                adamw.state[master][kind].copy_(value)
        if master is None:
            _scatter(parameter, "weight", collected[f"weight.{name}"].to(parameter.device))


def _masters(model: nn.Module, adamw: torch.optim.Optimizer) -> list[Tensor | None]:
    """Return the tensor that the optimizer updates for each parameter; None if ZeRO divides it.

    Without ZeRO it is the parameter itself, or its float32 copy in DeepSpeed's stage 0 with bf16.
    """
    parameters = list(model.parameters())
    if any(hasattr(p, "ds_id") or hasattr(p, "_hp_mapping") for p in parameters):
        return [None] * len(parameters)
    return [tensor for group in adamw.param_groups for tensor in group["params"]]


def _create_moments(adamw: torch.optim.Optimizer, zero: Any, updates: Tensor) -> None:
    """Create what AdamW creates in its first step, so that there is something to restore into."""
    tensors = [tensor for group in adamw.param_groups for tensor in group["params"]]
    if not tensors:  # ZeRO-3 hands them to the optimizer one by one
        tensors = zero.fp32_partitioned_groups_flat
    for tensor in tensors:
        adamw.state[tensor] = {
            "step": updates.to(tensor.device).float().reshape(()).clone(),
            **{kind: torch.zeros_like(tensor) for kind in _MOMENTS},
        }
    link = getattr(zero, "_lazy_init_hp_params_optimizer_state", None)
    if link is not None:  # otherwise called by DeepSpeed after its first step
        link()


def _gather(parameter: nn.Parameter, kind: str) -> Tensor:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    tensor: Tensor = (
        safe_get_full_fp32_param(parameter)
        if kind == "weight"
        else safe_get_full_optimizer_state(parameter, kind)
    )
    return tensor


def _scatter(parameter: nn.Parameter, kind: str, value: Tensor) -> None:
    from deepspeed import utils

    if hasattr(parameter, "ds_id"):
        # ZeRO-3 divides each parameter and pads the last part, which DeepSpeed's function for whole values
        # does not take into account.
        size = cast(Any, parameter).partition_numel()
        padded = F.pad(value.flatten(), (0, size * dist.get_world_size() - value.numel()))
        value = padded.narrow(0, dist.get_rank() * size, size)
        if kind == "weight":
            utils.safe_set_local_fp32_param(parameter, value)
        else:
            utils.safe_set_local_optimizer_state(parameter, value, kind)
    elif kind == "weight":
        utils.safe_set_full_fp32_param(parameter, value)
    else:
        utils.safe_set_full_optimizer_state(parameter, value, kind)
