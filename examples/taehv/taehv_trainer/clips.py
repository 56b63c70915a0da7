"""Clips for training and validation. Which clip comes when is a pure function of seed, process and position.

Nothing has to be remembered to go on exactly where a checkpoint was written but the number of reads seen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
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
from taehv_trainer.video import Frames, UnreadableVideoError, VideoIndex, read_frames, read_index

_VALIDATION_SEED = 20_000  # apart from every epoch's number
_INDICES = 4096  # of videos that a process remembers


class Clip(NamedTuple):
    """One clip, or a batch of them with one more dimension in front.

    ``frames`` uint8 (T, 3, H, W); ``latents`` of a teacher, one a ``time_factor`` frames; ``lacks_past`` says
    that they were encoded from more than the clip's frames; ``skipped``: files passed over, and why.
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

    The end of each video is held out for validation. Videos too short to be divided are trained on whole,
    except for some that are held out whole, drawn by their names. Short videos stay decoded in memory up to
    ``cache_mib``; from others only the clip is decoded. A clip that cannot be read is replaced by one of the
    next video; nothing is remembered of it, so that later clips, or those after a resume, are the same.
    """

    def __init__(self, sources: list[Source], config: TrainConfig) -> None:
        self._sources = sources
        self._config = config
        self._reads_per_video = max(1, config.clips_per_video // config.clips_per_read)
        self._held_out_if_short = _drawn(sources, config)
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
        order = ((number + offset) % len(self._sources) for offset in range(len(self._sources)))
        places = (slot / self._reads_per_video, 1 / self._reads_per_video)
        return self._cut(order, rng, *places, self._config.clips_per_read, held_out=False)

    def validation_clip(self, number: int) -> Clip:
        """Return one of ``validation_clips`` clips, spread over what is held out.

        Where the video whose turn it is serves training alone, one that is surely held out takes its place.
        """
        n_clips, n_videos = self._config.validation_clips, len(self._sources)
        rng = default_rng((self._config.seed, _VALIDATION_SEED, number))
        drawn = sorted(self._held_out_if_short)
        first = number * len(drawn) // n_clips
        order = dict.fromkeys(
            (number * n_videos // n_clips, *drawn[first:], *drawn[:first], *range(n_videos))
        )
        return self._cut(order, rng, number / n_clips, 0.0, 1, held_out=True)[0]

    def _cut(
        self, order: Iterable[int], rng: Generator, place: float, spread: float, count: int, *, held_out: bool
    ) -> list[Clip]:
        """Cut clips from the first usable video in ``order``.

        They start between ``place`` and ``place + spread`` of where they can start.
        """
        skipped: dict[str, str] = {}
        for number in order:
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
        short = len(self._sources) - len(skipped)
        reasons = [f"{path} {reason}" for path, reason in skipped.items()][:1]
        if short:
            reasons.append(f"{short} too short to be divided, and held out for the other purpose")
        return TrainingError(
            f"none of {len(self._sources)} videos can be used for {purpose}: {'; '.join(reasons)}",
            "check the files, num_frames and holdout_fraction",
        )

    def _part(self, number: int, *, held_out: bool) -> range | None:
        """Return the frames of a video for one purpose; None where it serves the other one alone."""
        n_needed = self._config.num_frames
        n_frames = len(self._index(self._sources[number].video))
        boundary = int(n_frames * (1 - self._config.holdout_fraction))
        boundary = _down_to(boundary, self._config.architecture.time_factor)
        if min(boundary, n_frames - boundary) >= n_needed:
            return range(boundary, n_frames) if held_out else range(boundary)
        if n_frames < n_needed:
            raise UnreadableVideoError(
                self._sources[number].video, f"has {n_frames} frames, a clip needs {n_needed}"
            )
        return range(n_frames) if (number in self._held_out_if_short) == held_out else None

    def _cut_from(
        self, source: Source, part: range, rng: Generator, place: float, count: int, *, mirror: bool
    ) -> list[Clip]:
        config = self._config
        step = config.architecture.time_factor if source.latents is not None else 1
        window = min(len(part), count * config.num_frames)
        first = _down_to(part.start + int(place * (len(part) - window + 1)), step)
        room = window - config.num_frames
        starts = [_down_to(number * room // max(1, count - 1), step) for number in range(count)]
        index = self._index(source.video)
        frames = self._frames(source.video, index, first, starts[-1] + config.num_frames)
        clips = []
        for start in starts:
            cropped = self._crop(
                frames[start : start + config.num_frames],
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


def _drawn(sources: list[Source], config: TrainConfig) -> frozenset[int]:
    """Draw by their names the videos that are held out whole if they are short; one at least, of several."""
    if len(sources) == 1:
        return frozenset()
    marks = [hashlib.sha256(f"{config.seed} {source.name}".encode()).digest() for source in sources]
    order = sorted(range(len(sources)), key=marks.__getitem__)
    return frozenset(order[: math.ceil(len(sources) * config.holdout_fraction)])


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
    )
    return iter(loader)
