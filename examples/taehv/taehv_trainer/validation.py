"""Quality on frames that are never trained on, measured by all processes together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator
from PIL import Image
from torch import Tensor

from taehv_trainer import picture
from taehv_trainer.clips import Clip, ClipDataset, join
from taehv_trainer.metrics import compare
from taehv_trainer.model import TAEHV
from taehv_trainer.objective import scaled
from taehv_trainer.session import average

_PICTURED_CLIPS = 3
_NAMES = ("psnr", "ssim", "sharpness", "mean_colour_psnr")
Targets = Callable[[Clip], Tensor | None]


class Validation:
    """This process' share of the validation clips, decoded once.

    ``targets`` returns a teacher's latents of a batch, or None. Raises TrainingError at once if no video can
    be used, instead of minutes later.
    """

    def __init__(
        self, dataset: ClipDataset, n_clips: int, accelerator: Accelerator, targets: Targets, *, distils: bool
    ) -> None:
        mine = range(accelerator.process_index, n_clips, accelerator.num_processes)
        self.clips: list[Clip] = [dataset.validation_clip(number) for number in mine]
        self._device = accelerator.device
        self._targets = targets
        self._names = (*_NAMES, "teacher_psnr", "latent_error") if distils else _NAMES

    def measure(self, model: TAEHV) -> dict[str, float]:
        """Return the mean quality over the clips of all processes, which all must call this."""
        sums = torch.zeros(1 + len(self._names), device=self._device)
        for clip in self.clips:
            batch = join([[clip]])
            lacks_past = None if batch.lacks_past is None else batch.lacks_past.to(self._device)
            _, values = compare(model, batch.frames.to(self._device), self._targets(batch), lacks_past)
            sums += torch.tensor([1.0, *(values[name] for name in self._names)], device=self._device)
        n_clips, *totals = average(sums).tolist()
        return {name: total / n_clips for name, total in zip(self._names, totals, strict=True)}

    def draw(self, model: TAEHV, curve: list[tuple[int, float]], mean_colour_psnr: float) -> Image.Image:
        """Return a picture of some clips beside their reconstructions."""
        pairs = []
        for clip in self.clips[:_PICTURED_CLIPS]:
            reconstruction, _ = compare(model, clip.frames[None].to(self._device))
            pairs.append((scaled(clip.frames[: reconstruction.shape[1]]), reconstruction[0]))
        return picture.draw(pairs, curve, mean_colour_psnr)
