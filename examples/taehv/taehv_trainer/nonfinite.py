"""Gradients that are NaN or infinite: they never reach the weights, and it is reported where they began."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from taehv_trainer.clips import Clip


def skip_nonfinite_steps(adamw: torch.optim.AdamW) -> None:
    """Make a fused AdamW skip steps with such gradients, on the device: nothing waits for it.

    Stages 1 to 3 of ZeRO skip them before they call the optimizer.
    """

    def check(optimizer: Any, _args: object, _kwargs: object) -> None:
        gradients = [
            p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        if gradients:
            norms = torch.stack(torch._foreach_norm(gradients))
            optimizer.found_inf = (~torch.isfinite(norms).all()).float()

    adamw.register_step_pre_hook(check)


@torch.no_grad()
def where_it_began(objective: nn.Module, batch: Clip, targets: Tensor | None) -> str:
    """Run a forward pass again; return what was not finite first, or "" if all was.

    All processes must call this: under ZeRO-3 they need each other's parameters.
    """
    found: list[str] = []

    def watch(name: str, module: nn.Module) -> Any:
        def check(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(f"the output of {name} ({type(module).__name__})")

        return module.register_forward_hook(check)

    if targets is not None and not torch.isfinite(targets).all():
        found.append("the teacher's latents")
    for name, parameter in objective.named_parameters():
        if not torch.isfinite(parameter).all():
            found.append(f"the weight {name}")
    handles = [watch(name, module) for name, module in objective.named_modules() if name]
    try:
        losses = objective(batch.frames, targets, batch.lacks_past)
    finally:
        for handle in handles:
            handle.remove()
    found += [f"the {name} loss" for name, value in losses.items() if not torch.isfinite(value).all()]
    return found[0] if found else ""
