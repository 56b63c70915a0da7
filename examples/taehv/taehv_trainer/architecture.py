"""The shapes that TAEHV comes in: those published for several video models, and a small one for CPUs.

Plain numbers, so that a config can be checked without torch.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """One shape of the model. The decoder's stages undo the encoder's in reverse order."""

    latent_channels: int = 16
    patch_size: int = 1  # pixels along a side that are moved into channels before the first convolution
    encoder_width: int = 64
    decoder_widths: tuple[int, int, int, int] = (256, 128, 64, 64)
    blocks: int = 3  # MemBlocks a stage
    time_strides: tuple[int, int, int] = (2, 2, 1)  # of the encoder's stages

    @property
    def time_factor(self) -> int:
        """Frames a latent."""
        return math.prod(self.time_strides)

    @property
    def space_factor(self) -> int:
        """Pixels a latent, along each side."""
        return 8 * self.patch_size

    @property
    def past_frames(self) -> int:
        """Frames before it that a latent depends on: one step back for each block, at its stage's rate."""
        rates: Iterable[int] = itertools.accumulate(self.time_strides, operator.mul)
        return self.blocks * sum(rates)

    @property
    def past_latents(self) -> int:
        """Latents before it that an output frame depends on: as `past_frames`, and the frames left out."""
        rates: Iterable[int] = itertools.accumulate((1, *self.time_strides[:0:-1]), operator.mul)
        return math.ceil(sum(self.blocks / rate for rate in rates)) + 1

    @property
    def trimmed_frames(self) -> int:
        """Leading output frames that no input frame corresponds to."""
        return self.time_factor - 1


ARCHITECTURES = {
    "full": Architecture(),  # taehv, taew2_1, taecvx, taeos1_3
    "small": Architecture(encoder_width=24, decoder_widths=(48, 32, 24, 24), blocks=1),
    "taehv1_5": Architecture(latent_channels=32, patch_size=2),
    "taew2_2": Architecture(latent_channels=48, patch_size=2),
    "taeltx": Architecture(latent_channels=128, patch_size=4, time_strides=(2, 2, 2)),
}
