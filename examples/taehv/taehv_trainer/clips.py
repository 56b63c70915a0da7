"""Clips for training and validation. Which clip comes when is a pure function of seed, process and position.

Nothing has to be remembered to go on exactly where a checkpoint was written but the number of clips seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.model import TIME_FACTOR
from taehv_trainer.sources import Source
from taehv_trainer.video import Frames, UnreadableVideoError, VideoShape, read_frames, read_shape

_VALIDATION_SEED = 20_000  # apart from every epoch's number


class Clip(NamedTuple):
    """One clip, or a batch of them with one more dimension in front.

    ``frames`` uint8 (T, 3, H, W); ``latents`` of a teacher, (T / 4, C, H / 8, W / 8); ``skipped``: the files
    that were passed over on the way, and why.
    """

    frames: Tensor
    latents: Tensor | None
    skipped: dict[str, str]


class ClipStream(Sampler[list[tuple[int, int]]]):
    """Endless batches of ``(epoch, index)`` for one process.

    Clip g of all processes goes to process ``g % n_processes``; each epoch is one permutation of all indices,
    so that processes never share a clip and no clip comes twice in an epoch.
    """

    def __init__(
        self, n_clips: int, batch_size: int, seed: int, *, process: int, n_processes: int, clips_seen: int = 0
    ) -> None:
        self._n_clips = n_clips
        self._batch_size = batch_size
        self._seed = seed
        self._positions = (process, n_processes, clips_seen)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        process, n_processes, clips_seen = self._positions
        position, current, order = clips_seen + process, -1, np.empty(0, dtype=np.int64)
        while True:
            batch = []
            for _ in range(self._batch_size):
                epoch, offset = divmod(position, self._n_clips)
                if epoch != current:
                    current, order = epoch, default_rng((self._seed, epoch)).permutation(self._n_clips)
                batch.append((epoch, int(order[offset])))
                position += n_processes
            yield batch


class ClipDataset(Dataset[Clip]):
    """Cuts clips out of videos: a random place, crop and mirroring drawn from seed, epoch and index.

    The end of each video is held out for validation. Short videos stay decoded in memory up to
    ``cache_mib``; from others only the clip is decoded. An unreadable video's place is taken by the next one.
    """

    def __init__(self, sources: list[Source], config: TrainConfig) -> None:
        self._sources = sources
        self._config = config
        self._shapes: dict[Path, VideoShape] = {}
        self._decoded: dict[Path, Frames] = {}
        self._free_bytes = config.cache_mib * 2**20
        self._unreadable: dict[Path, UnreadableVideoError] = {}

    def __len__(self) -> int:
        """Return the number of clips in one epoch."""
        return len(self._sources) * self._config.clips_per_video

    def __getitem__(self, key: tuple[int, int]) -> Clip:
        """Return training clip ``(epoch, index)``."""
        epoch, index = key
        rng = default_rng((self._config.seed, epoch, index))
        slot, number = divmod(index, len(self._sources))
        return self._cut(number, rng, slot / self._config.clips_per_video, 1 / self._config.clips_per_video)

    def validation_clip(self, number: int) -> Clip:
        """Return one of ``validation_clips`` clips, spread over the videos' held-out ends."""
        n_clips, n_videos = self._config.validation_clips, len(self._sources)
        rng = default_rng((self._config.seed, _VALIDATION_SEED, number))
        return self._cut(number * n_videos // n_clips, rng, number / n_clips, 0.0, held_out=True)

    def _cut(self, number: int, rng: Generator, place: float, spread: float, held_out: bool = False) -> Clip:
        """Cut a clip whose start lies between ``place`` and ``place + spread`` of where a clip can start."""
        skipped: dict[str, str] = {}
        for offset in range(len(self._sources)):
            source = self._sources[(number + offset) % len(self._sources)]
            try:
                return self._cut_from(source, rng, place, spread, held_out)._replace(skipped=skipped)
            except UnreadableVideoError as error:
                self._unreadable[source.video] = error
                skipped[str(error.path)] = error.reason
        path, reason = next(iter(skipped.items()))
        purpose = "validation" if held_out else "training"
        raise TrainingError(
            f"none of {len(self._sources)} videos can be used for {purpose}: {path} {reason}",
            "check the files, num_frames and holdout_fraction",
        )

    def _cut_from(self, source: Source, rng: Generator, place: float, spread: float, held_out: bool) -> Clip:
        config = self._config
        shape = self._shape(source.video)
        boundary = int(shape.n_frames * (1 - config.holdout_fraction))
        first, end = (boundary, shape.n_frames) if held_out else (0, boundary)
        n_starts = end - first - config.num_frames + 1
        if n_starts < 1:
            part = "held out" if held_out else "to train on"
            raise UnreadableVideoError(
                source.video, f"has {end - first} frames {part}, a clip needs {config.num_frames}"
            )
        start = first + int((place + spread * rng.random()) * n_starts)
        frames_of_latent = TIME_FACTOR if source.latents is not None else 1
        start -= start % frames_of_latent
        frames = self._frames(source.video, shape, start)
        frames = self._crop(frames, rng, centered=source.latents is not None, mirror=not held_out)
        latents = None if source.latents is None else _read_latents(source.latents, start, config)
        return Clip(torch.from_numpy(frames.transpose(0, 3, 1, 2).copy()), latents, {})

    def _shape(self, video: Path) -> VideoShape:
        if video in self._unreadable:
            raise self._unreadable[video]
        if video not in self._shapes:
            config = self._config
            shape = read_shape(video, config.height, config.width, config.resize_short_side or 0)
            if shape.n_bytes <= self._free_bytes:
                decoded = self._decoded[video] = read_frames(video, shape)
                self._free_bytes -= decoded.nbytes
                shape = VideoShape(decoded.shape[0], shape.height, shape.width)
            self._shapes[video] = shape
        return self._shapes[video]

    def _frames(self, video: Path, shape: VideoShape, start: int) -> Frames:
        if video in self._decoded:
            return self._decoded[video][start : start + self._config.num_frames]
        return read_frames(video, shape, start, self._config.num_frames)

    def _crop(self, frames: Frames, rng: Generator, *, centered: bool, mirror: bool) -> Frames:
        height, width = self._config.height, self._config.width
        spare = (frames.shape[1] - height, frames.shape[2] - width)
        top, left = ((n // 2 if centered else int(rng.integers(n + 1))) for n in spare)
        frames = frames[:, top : top + height, left : left + width]
        flipped = mirror and self._config.horizontal_flip and rng.random() < 0.5
        return frames[:, :, ::-1] if flipped else frames


def _read_latents(file: Path, start: int, config: TrainConfig) -> Tensor:
    """Read the latents of a clip: tensor ``latents`` of the whole video, (frames / 4, C, H / 8, W / 8).

    They were encoded from the video scaled to cover the training size and cropped at its centre.
    """
    from safetensors import SafetensorError, safe_open

    first, count = start // TIME_FACTOR, config.num_frames // TIME_FACTOR
    expected = (count, config.latent_channels, config.height // 8, config.width // 8)
    try:
        with safe_open(file, framework="pt") as tensors:
            latents: Tensor = tensors.get_slice("latents")[first : first + count]
    except (OSError, SafetensorError) as error:
        raise UnreadableVideoError(file, f"holds no tensor 'latents': {error}") from error
    if latents.shape != expected:
        raise UnreadableVideoError(file, f"has latents {tuple(latents.shape)}, expected {expected}")
    return latents


def _join(clips: list[Clip]) -> Clip:
    latents = [clip.latents for clip in clips if clip.latents is not None]
    return Clip(
        torch.stack([clip.frames for clip in clips]),
        torch.stack(latents) if latents else None,
        {path: reason for clip in clips for path, reason in clip.skipped.items()},
    )


def load_batches(dataset: ClipDataset, stream: ClipStream, config: TrainConfig) -> Iterator[Clip]:
    """Return an endless iterator of batches, decoded ahead by ``num_workers`` processes."""
    loader: DataLoader[Clip] = DataLoader(
        dataset,
        batch_sampler=stream,
        collate_fn=_join,
        num_workers=config.num_workers,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)
