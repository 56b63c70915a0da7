"""Quality on frames that are never trained on, measured by all processes together."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator

from taehv_trainer import picture
from taehv_trainer.clips import Clip, ClipDataset
from taehv_trainer.metrics import compare
from taehv_trainer.model import TAEHV, TRIMMED_FRAMES
from taehv_trainer.objective import scaled
from taehv_trainer.session import average

_PICTURED_CLIPS = 3
_NAMES = ("psnr", "ssim", "mean_colour_psnr")


class Validation:
    """This process' share of the validation clips, decoded once.

    Raises TrainingError at once when no video can be used, instead of minutes later.
    """

    def __init__(self, dataset: ClipDataset, n_clips: int, accelerator: Accelerator) -> None:
        mine = range(accelerator.process_index, n_clips, accelerator.num_processes)
        self.clips: list[Clip] = [dataset.validation_clip(number) for number in mine]
        self._device = accelerator.device

    def measure(self, model: TAEHV) -> dict[str, float]:
        """Return the mean quality over the clips of all processes, which all must call this."""
        sums = torch.zeros(1 + len(_NAMES), device=self._device)
        for clip in self.clips:
            _, values = compare(model, clip.frames[None].to(self._device))
            sums += torch.tensor([1.0, *(values[name] for name in _NAMES)], device=self._device)
        n_clips, *totals = average(sums).tolist()
        return {name: total / n_clips for name, total in zip(_NAMES, totals, strict=True)}

    def draw(self, file: Path, model: TAEHV, curve: list[tuple[int, float]], mean_colour_psnr: float) -> None:
        """Write the picture of some clips beside their reconstructions."""
        pairs = []
        for clip in self.clips[:_PICTURED_CLIPS]:
            reconstruction, _ = compare(model, clip.frames[None].to(self._device))
            pairs.append((scaled(clip.frames[:-TRIMMED_FRAMES]), reconstruction[0]))
        picture.draw(file, pairs, curve, mean_colour_psnr)
