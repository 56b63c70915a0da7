"""Clips for training and validation. Which clip comes when is a pure function of seed, process and position.

To go on exactly where a checkpoint was written, the number of clips seen is enough, however many processes.
"""

from __future__ import annotations

import math
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
from taehv_trainer.sources import Source
from taehv_trainer.split import Split
from taehv_trainer.stopping import ignore_signals
from taehv_trainer.video import Frames, UnreadableVideoError, VideoIndex, read_frames, read_index

_INDICES = 4096  # of videos that a process remembers


class Clip(NamedTuple):
    """One clip, or a batch of them with one more dimension in front.

    ``frames`` uint8 (T, 3, H, W); ``latents`` of a teacher, one per ``time_factor`` frames; ``lacks_past``:
    they were encoded from more than the clip's frames; ``skipped``: unreadable files, and why.
    """

    frames: Tensor
    latents: Tensor | None
    lacks_past: Tensor | None
    skipped: dict[str, str]


class ClipStream(Sampler[list[tuple[int, int]]]):
    """Endless batches of ``(epoch, index)`` for one process; each names a read of one or more clips.

    Read g of all processes goes to process ``g % n_processes``; each epoch is one permutation of all indices,
    so that processes never share a read and none comes twice in an epoch.
    """

    def __init__(
        self, n_reads: int, per_batch: int, seed: int, *, process: int, n_processes: int, reads_seen: int = 0
    ) -> None:
        self._n_reads = n_reads
        self._per_batch = per_batch
        self._seed = seed
        self._positions = (process, n_processes, reads_seen)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        process, n_processes, reads_seen = self._positions
        position, current, order = reads_seen + process, -1, np.empty(0, dtype=np.int64)
        while True:
            batch = []
            for _ in range(self._per_batch):
                epoch, offset = divmod(position, self._n_reads)
                if epoch != current:
                    current, order = epoch, default_rng((self._seed, epoch)).permutation(self._n_reads)
                batch.append((epoch, int(order[offset])))
                position += n_processes
            yield batch


class ClipDataset(Dataset[list[Clip]]):
    """Cuts clips out of videos: a random place, crop and mirroring drawn from seed, epoch and index.

    `Split` holds out frames for validation. Short videos stay decoded in memory up to ``cache_mib``; from
    others only the clip is decoded. A clip that cannot be read is replaced by one of the next video; nothing
    is remembered of it, so that later clips, or those after a resume, are the same.
    """

    def __init__(self, sources: list[Source], config: TrainConfig) -> None:
        self._sources = sources
        self._config = config
        self._reads_per_video = max(1, config.clips_per_video // config.clips_per_read)
        self._split = Split([source.video for source in sources], config.holdout_fraction)
        self._indices: dict[Path, VideoIndex] = {}
        self._decoded: dict[Path, Frames] = {}
        self._free_bytes = config.cache_mib * 2**20

    def __len__(self) -> int:
        """Return the number of reads in one epoch."""
        return len(self._sources) * self._reads_per_video

    def __getitem__(self, key: tuple[int, int]) -> list[Clip]:
        """Return the ``clips_per_read`` training clips of read ``(epoch, index)``."""
        epoch, index = key
        rng = default_rng((self._config.seed, epoch, index))
        slot, number = divmod(index, len(self._sources))
        places = (slot / self._reads_per_video, 1 / self._reads_per_video)
        return self._cut(number, rng, *places, self._config.clips_per_read, held_out=False)

    def validation_clip(self, number: int) -> Clip:
        """Return one of ``validation_clips`` clips, spread over what is held out; no seed changes it."""
        n_clips = self._config.validation_clips
        first = number * len(self._sources) // n_clips
        return self._cut(first, default_rng(number), number / n_clips, 0.0, 1, held_out=True)[0]

    def _cut(
        self, first: int, rng: Generator, place: float, spread: float, count: int, *, held_out: bool
    ) -> list[Clip]:
        """Cut clips from the first usable video from number ``first`` on.

        They start between ``place`` and ``place + spread`` of where they can start.
        """
        skipped: dict[str, str] = {}
        for offset in range(len(self._sources)):
            number = (first + offset) % len(self._sources)
            source = self._sources[number]
            try:
                part = self._part(number, held_out=held_out)
                if part is None:
                    continue
                clips = self._cut_from(
                    source, part, rng, place + spread * rng.random(), count, mirror=not held_out
                )
            except UnreadableVideoError as error:
                skipped[str(error.path)] = error.reason
            else:
                return [clips[0]._replace(skipped=skipped), *clips[1:]]
        raise self._nothing_usable(skipped, "validation" if held_out else "training")

    def _nothing_usable(self, skipped: dict[str, str], purpose: str) -> TrainingError:
        other = len(self._sources) - len(skipped)
        reasons = [f"{path} {reason}" for path, reason in skipped.items()][:1]
        if other:
            reasons.append(f"{other} too short to train on one part and validate on another")
        return TrainingError(
            f"none of {len(self._sources)} videos can be used for {purpose}: {'; '.join(reasons)}",
            "check the files, num_frames and holdout_fraction, or add videos",
        )

    def _part(self, number: int, *, held_out: bool) -> range | None:
        """Return the frames of a video that serve a purpose; None if there are none."""
        n_frames, span = len(self._index(self._sources[number].video)), self._config.clip_span
        if n_frames < span:
            raise UnreadableVideoError(
                self._sources[number].video, f"has {n_frames} frames, a clip needs {span}"
            )
        frames_of = self._split.validation_frames if held_out else self._split.training_frames
        return frames_of(number, n_frames, span, self._config.architecture.time_factor)

    def _cut_from(
        self, source: Source, part: range, rng: Generator, place: float, count: int, *, mirror: bool
    ) -> list[Clip]:
        config = self._config
        step = config.architecture.time_factor if source.latents is not None else 1
        span = config.clip_span
        window = min(len(part), count * span)
        first = _down_to(part.start + int(place * (len(part) - window + 1)), step)
        room = window - span
        starts = [_down_to(number * room // max(1, count - 1), step) for number in range(count)]
        index = self._index(source.video)
        frames = self._frames(source.video, index, first, starts[-1] + span)
        clips = []
        for start in starts:
            cropped = self._crop(
                frames[start : start + span : config.frame_stride],
                rng,
                centered=source.latents is not None,
                mirror=mirror,
            )
            latents = lacks_past = None
            if source.latents is not None:
                latents = read_latents(source.latents, first + start, len(index), config)
                lacks_past = torch.tensor(first + start > 0)
            clips.append(
                Clip(torch.from_numpy(cropped.transpose(0, 3, 1, 2).copy()), latents, lacks_past, {})
            )
        return clips

    def _index(self, video: Path) -> VideoIndex:
        if video not in self._indices:
            index = read_index(video)
            n_bytes = len(index) * 3 * math.prod(self._size(index))
            if n_bytes <= self._free_bytes:
                self._decoded[video] = read_frames(video, index, self._size(index))
                self._free_bytes -= n_bytes
            while len(self._indices) >= _INDICES:
                forgotten = next(iter(self._indices))
                del self._indices[forgotten]
                freed = self._decoded.pop(forgotten, None)
                self._free_bytes += 0 if freed is None else freed.nbytes
            self._indices[video] = index
        return self._indices[video]

    def _size(self, index: VideoIndex) -> tuple[int, int]:
        config = self._config
        return index.covering(config.height, config.width, config.resize_short_side or 0)

    def _frames(self, video: Path, index: VideoIndex, start: int, count: int) -> Frames:
        if video in self._decoded:
            return self._decoded[video][start : start + count]
        return read_frames(video, index, self._size(index), start, count)

    def _crop(self, frames: Frames, rng: Generator, *, centered: bool, mirror: bool) -> Frames:
        height, width = self._config.height, self._config.width
        spare = (frames.shape[1] - height, frames.shape[2] - width)
        top, left = ((n // 2 if centered else int(rng.integers(n + 1))) for n in spare)
        frames = frames[:, top : top + height, left : left + width]
        flipped = mirror and self._config.horizontal_flip and rng.random() < 0.5
        return frames[:, :, ::-1] if flipped else frames


def _down_to(number: int, step: int) -> int:
    return number - number % step


def read_latents(file: Path, start: int, n_frames: int, config: TrainConfig) -> Tensor:
    """Read the latents of a clip: tensor ``latents`` of the whole video, (frames / time_factor, C, h, w).

    They were encoded from the video scaled to cover the training size and cropped at its centre. An encoder
    that takes the first frame alone rounds the number of latents up, another one may round it down.
    """
    from safetensors import SafetensorError, safe_open

    shape, factor = config.architecture, config.architecture.time_factor
    first, count = start // factor, config.num_frames // factor
    sides = (config.height // shape.space_factor, config.width // shape.space_factor)
    expected = (shape.latent_channels, *sides)
    try:
        with safe_open(file, framework="pt") as tensors:
            stored = tensors.get_slice("latents")
            n_latents, *found = stored.get_shape()
            latents: Tensor = stored[first : first + count]
    except (OSError, ValueError, SafetensorError) as error:
        raise UnreadableVideoError(file, f"holds no tensor 'latents': {error}") from error
    if n_latents not in (n_frames // factor, -(-n_frames // factor)):
        raise UnreadableVideoError(
            file, f"holds {n_latents} latents, but {n_frames} frames have {-(-n_frames // factor)}"
        )
    if not torch.isfinite(latents).all():
        raise UnreadableVideoError(
            file, f"holds values that are not finite in latents {first} to {first + count - 1}"
        )
    if tuple(found) != expected or len(latents) != count:
        raise UnreadableVideoError(
            file, f"has latents of {tuple(found)} at {first}, expected {count} of {expected}"
        )
    return latents


def join(reads: list[list[Clip]]) -> Clip:
    """Make one batch of the clips of several reads."""
    clips = [clip for read in reads for clip in read]
    latents = [clip.latents for clip in clips if clip.latents is not None]
    lacks_past = [clip.lacks_past for clip in clips if clip.lacks_past is not None]
    return Clip(
        torch.stack([clip.frames for clip in clips]),
        torch.stack(latents) if latents else None,
        torch.stack(lacks_past) if lacks_past else None,
        {path: reason for clip in clips for path, reason in clip.skipped.items()},
    )


def load_batches(dataset: ClipDataset, stream: ClipStream, config: TrainConfig) -> Iterator[Clip]:
    """Return an endless iterator of batches, decoded ahead by ``num_workers`` processes."""
    loader: DataLoader[Clip] = DataLoader(
        dataset,  # type: ignore[arg-type]  # what `join` makes of its items is a Clip
        batch_sampler=stream,
        collate_fn=join,
        num_workers=config.num_workers,
        pin_memory=torch.cuda.is_available(),
        # Python 3.14 would start workers anew, each importing torch.
        multiprocessing_context="fork" if config.num_workers else None,
        worker_init_fn=ignore_signals,
    )
    return iter(loader)
