"""An adversarial loss: a small network learns to distinguish frames from reconstructions, patch by patch.

It learns in every forward pass of the objective, from its own loss. It is not a part of the objective, which
DDP and DeepSpeed wrap: each process has a whole copy, and the gradients are averaged here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.parametrizations import spectral_norm

from taehv_trainer.nonfinite import skip_nonfinite_steps

_WIDTHS = (32, 64, 64)
_NETWORK = "network."


class Adversary:
    """A PatchGAN discriminator with spectral normalization and hinge loss, and its optimizer.

    All processes must build it from the same random state.
    """

    def __init__(self, device: torch.device) -> None:
        first, second, third = _WIDTHS
        self.network = nn.Sequential(
            spectral_norm(nn.Conv2d(3, first, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(first, second, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(second, third, 3, padding=1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(third, 1, 3, padding=1)),
        ).to(device)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), betas=(0.5, 0.9), weight_decay=0.0, fused=True
        )
        skip_nonfinite_steps(self.optimizer)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def loss(self, reconstruction: Tensor, target: Tensor) -> Tensor:
        """Return how clearly (N, T, 3, H, W) is seen to be a reconstruction, after learning from both.

        With gradients off, nothing is learned.
        """
        with torch.autocast(reconstruction.device.type, enabled=False):
            made, real = reconstruction.flatten(0, 1), target.flatten(0, 1)
            if torch.is_grad_enabled():
                self._learn(made.detach(), real)
            self.network.requires_grad_(False)
            loss: Tensor = -self.network(made).mean()
            self.network.requires_grad_(True)
            return loss

    def _learn(self, made: Tensor, real: Tensor) -> None:
        loss = F.relu(1 - self.network(real)).mean() + F.relu(1 + self.network(made)).mean()
        parameters = list(self.network.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        if dist.is_initialized():
            mean = parameters_to_vector(gradients) / dist.get_world_size()
            dist.all_reduce(mean)
            vector_to_parameters(mean, gradients)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs."""
        moments = self.optimizer.state_dict()["state"]
        return {
            **{_NETWORK + name: value for name, value in self.network.state_dict().items()},
            **{f"{n}.{kind}": value for n, kinds in moments.items() for kind, value in kinds.items()},
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned."""
        moments: dict[int, dict[str, Tensor]] = {}
        weights: dict[str, Tensor] = {}
        for name, value in state.items():
            if name.startswith(_NETWORK):
                weights[name.removeprefix(_NETWORK)] = value
            else:
                number, kind = name.split(".")
                moments.setdefault(int(number), {})[kind] = value
        self.network.load_state_dict(weights)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
