"""Measure how well a TAEHV reconstructs your videos; show original and reconstruction side by side.

    python examples/taehv/evaluate.py --weights runs/x/checkpoints/latest/ema.safetensors --output shown a.mp4

Prints one line per video and the mean: PSNR and SSIM over all frames, and the temporal error, which is the
mean difference between the frame-to-frame changes of both, in grey levels of 255 (flicker raises it). Writes
``OUTPUT/<name>.mp4`` and ``OUTPUT/metrics.json``. The videos are read at their own size unless --short-side
is given, and cropped to what the model can encode.

Exit codes: 0, or 66 if the weights or none of the videos can be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np

from taehv_trainer.errors import TrainingError
from taehv_trainer.sources import videos_below
from taehv_trainer.video import Frames, UnreadableVideoError, all_frames, read_index

if TYPE_CHECKING:
    from taehv_trainer.model import TAEHV

_CHUNK = 48  # frames encoded at once
_RATE = 25
_SSIM_WINDOW = 11  # pixels along a side


@dataclass(frozen=True)
class Quality:
    """Means over the frames of one video, or over videos."""

    frames: int
    psnr: float
    ssim: float
    temporal_error: float

    def __str__(self) -> str:
        return (
            f"{self.frames} frames, PSNR {self.psnr:.2f} dB, SSIM {self.ssim:.4f}, "
            f"temporal error {self.temporal_error:.2f}"
        )


def main() -> int:
    """Evaluate all videos that are given."""
    given = _parse(sys.argv[1:])
    # Heavy imports wait until the command line has proved usable.
    import torch

    from taehv_trainer.weights import load_model

    try:
        videos = [
            video for path in given.videos for video in (videos_below(path) if path.is_dir() else [path])
        ]
        model = load_model(given.weights).eval().requires_grad_(False)
    except TrainingError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_code
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    given.output.mkdir(parents=True, exist_ok=True)
    measured: dict[str, Quality] = {}
    for video in videos:
        name = next(n for n in _names(video) if n not in measured)
        try:
            measured[name] = evaluate(model, video, given.output / f"{name}.mp4", given.short_side)
        except UnreadableVideoError as error:
            sys.stdout.write(f"{video}: left out: {error.reason}\n")
            continue
        sys.stdout.write(f"{video}: {measured[name]}\n")
        sys.stdout.flush()
    if not measured:
        sys.stderr.write(
            f"error: none of {len(videos)} videos could be evaluated\nhint: see the reasons above\n"
        )
        return TrainingError.exit_code
    mean = _mean(list(measured.values()))
    record = {"mean": vars(mean), "videos": {name: vars(quality) for name, quality in measured.items()}}
    (given.output / "metrics.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"mean of {len(measured)} videos: {mean}\nside by side: {given.output}\n")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="evaluate.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("videos", type=Path, nargs="+", metavar="VIDEO", help="file, or folder of videos")
    parser.add_argument("--weights", type=Path, required=True, help="state dict: .pth or .safetensors")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--short-side", type=int, default=0, help="scale the shorter side to so many pixels")
    return parser.parse_args(arguments)


def _names(video: Path) -> Iterator[str]:
    yield video.stem
    yield from (f"{video.stem}-{number}" for number in count(2))


def evaluate(model: TAEHV, video: Path, side_by_side: Path, short_side: int = 0) -> Quality:
    """Reconstruct a video and compare it frame by frame. Raises UnreadableVideoError."""
    import torch
    from pytorch_msssim import ssim

    from taehv_trainer.metrics import psnr_db
    from taehv_trainer.streaming import decode_in_parts, encode_in_parts

    index = read_index(video)
    size = index.scaled(short_side) if short_side else (index.height, index.width)
    factor = model.architecture.space_factor
    height, width = (side - side % factor for side in size)
    if min(height, width) < _SSIM_WINDOW:
        raise UnreadableVideoError(video, f"is too small to compare: {size[1]}×{size[0]}")
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    waiting: deque[Frames] = deque()

    def read() -> Iterator[Frames]:
        for frame in all_frames(video, index, size):
            cropped = frame[top : top + height, left : left + width]
            waiting.append(cropped)
            yield cropped

    sums, n_frames = np.zeros(3), 0
    before: np.ndarray | None = None
    with av.open(str(side_by_side), "w") as container:
        stream = container.add_stream("libx264", rate=_RATE, options={"crf": "14"})
        stream.width, stream.height, stream.pix_fmt = 2 * width, height, "yuv420p"
        for part in decode_in_parts(model, encode_in_parts(model, read(), _CHUNK)):
            for decoded in part.clamp(0, 1).float().cpu():
                if not waiting:
                    break  # latents of frames that were added to fill the last one
                frame = waiting.popleft()
                original = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1).float() / 255
                error = (decoded - original).numpy()
                sums += (
                    psnr_db(float(np.square(error).mean())),
                    float(ssim(decoded[None], original[None], data_range=1.0)),
                    0.0 if before is None else 255 * float(np.abs(error - before).mean()),
                )
                before, n_frames = error, n_frames + 1
                shown = (decoded.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
                both = av.VideoFrame.from_ndarray(np.concatenate([frame, shown], axis=1), format="rgb24")
                container.mux(stream.encode(both))
        container.mux(stream.encode())
    if not n_frames:
        raise UnreadableVideoError(video, "has too few frames")
    psnr, similarity, temporal = sums / [n_frames, n_frames, max(1, n_frames - 1)]
    return Quality(n_frames, float(psnr), float(similarity), float(temporal))


def _mean(qualities: list[Quality]) -> Quality:
    """Return the mean over videos, each counted once."""
    values = [[q.psnr, q.ssim, q.temporal_error] for q in qualities]
    return Quality(sum(q.frames for q in qualities), *np.mean(values, axis=0).tolist())


if __name__ == "__main__":
    sys.exit(main())
