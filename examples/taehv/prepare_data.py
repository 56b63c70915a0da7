"""Prepare videos for training, once: resized, with short groups of pictures, with a teacher's latents.

A clip from a long high-resolution video costs the decoding of up to a whole group of pictures at full size;
from a prepared one it costs little more than the clip itself. Writes ``OUTPUT/videos/<path>.mp4`` and, with
a teacher, ``OUTPUT/latents/<path>.mp4.safetensors``; then train with ``--data-root OUTPUT/videos`` (and
``--teacher-latents OUTPUT/latents --horizontal-flip false``). Only complete files are written, and existing
ones are kept, so that an interrupted run goes on; it must have the same settings.

    python examples/taehv/prepare_data.py --data-root videos --output prepared --height 480 --width 720

Exit codes: 0, or 66 if no video could be prepared, or OUTPUT was made with other settings.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import av
import numpy as np

from taehv_trainer.errors import TrainingError
from taehv_trainer.sources import videos_below
from taehv_trainer.video import UnreadableVideoError, all_frames, read_index

_RATE = 25  # of what is written; frames are counted, not timed
_CHUNK = 48  # frames that a teacher encodes at once
_BEFORE_A_KEY_FRAME = 64  # frames that a recording which begins between two key frames may lose


@dataclass(frozen=True)
class Wanted:
    """How to prepare every video."""

    root: Path
    output: Path
    height: int
    width: int
    short_side: int
    group: int
    quality: int
    teacher: Path | None


def main() -> int:
    """Prepare all videos of a folder."""
    wanted, n_workers = _parse(sys.argv[1:])
    try:
        videos = videos_below(wanted.root)
        _require_same_settings(wanted)
        if wanted.teacher is not None:
            from taehv_trainer.weights import load_model

            load_model(wanted.teacher)  # refused here, once, instead of by every worker
    except TrainingError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_code
    failed = 0
    # spawn: a forked process must not use torch's threads.
    with ProcessPoolExecutor(n_workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_try, video, wanted): video for video in videos}
        for number, done in enumerate(as_completed(waiting), 1):
            usable, said = done.result()
            failed += not usable
            sys.stdout.write(f"{number}/{len(videos)} {waiting[done]}: {said}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(videos) - failed} of {len(videos)} videos are in {wanted.output}\n")
    if failed == len(videos):
        sys.stderr.write(f"error: none of {failed} videos could be prepared\nhint: see the reasons above\n")
        return TrainingError.exit_code
    return 0


def _parse(arguments: list[str]) -> tuple[Wanted, int]:
    parser = argparse.ArgumentParser(prog="prepare_data.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data-root", type=Path, required=True, help="folder of videos")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--height", type=int, required=True, help="of the clips to train on")
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--short-side", type=int, default=0, help="keep more, for crops in different places")
    parser.add_argument("--group", type=int, default=12, help="frames from key frame to key frame")
    parser.add_argument("--quality", type=int, default=16, help="crf of H.264; smaller is better and larger")
    parser.add_argument("--teacher-checkpoint", type=Path, help="also write the latents of this TAEHV")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args(arguments)
    if given.teacher_checkpoint is not None and (given.height % 8 or given.width % 8):
        parser.error("--height and --width: expected multiples of 8")
    wanted = Wanted(
        root=given.data_root,
        output=given.output,
        height=given.height,
        width=given.width,
        short_side=given.short_side,
        group=given.group,
        quality=given.quality,
        teacher=given.teacher_checkpoint,
    )
    return wanted, given.workers


def _require_same_settings(wanted: Wanted) -> None:
    """Raise TrainingError if OUTPUT holds files that were made in another way."""
    paths = {"root": str(wanted.root.resolve()), "teacher": str(wanted.teacher)}
    settings = asdict(wanted) | paths
    del settings["output"]
    file = wanted.output / "settings.json"
    if file.exists():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TrainingError(f"{file} cannot be read: {error}", "pass another --output") from error
        # Latents may be added later, but not mixed.
        different = [name for name in settings if found.get(name) not in (settings[name], "None")]
        if different:
            raise TrainingError(
                f"{wanted.output} was prepared with other settings: "
                + ", ".join(f"{name} {found.get(name)} instead of {settings[name]}" for name in different),
                "pass another --output, or the same settings to go on",
            )
    wanted.output.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def _try(video: Path, wanted: Wanted) -> tuple[bool, str]:
    try:
        return True, prepare(video, wanted)
    except UnreadableVideoError as error:
        return False, f"left out: {error.reason}"


def prepare(video: Path, wanted: Wanted) -> str:
    """Prepare one video; returns what was done. Raises UnreadableVideoError."""
    name = video.relative_to(wanted.root)
    prepared = wanted.output / "videos" / name.with_name(f"{name.name}.mp4")
    said = "was there"
    if not prepared.exists():
        n_frames = _whole_or_not_there(prepared, lambda unfinished: _encode(video, unfinished, wanted))
        said = f"{n_frames} frames"
    if wanted.teacher is not None:
        latents = wanted.output / "latents" / name.with_name(f"{prepared.name}.safetensors")
        if not latents.exists():
            _whole_or_not_there(latents, lambda unfinished: _write_latents(prepared, unfinished, wanted))
            said += " and their latents"
    return said


def _whole_or_not_there(file: Path, write: Callable[[Path], int]) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
    try:
        written = write(unfinished)
        with unfinished.open("rb") as written_file:
            os.fsync(written_file.fileno())
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return written


def _encode(video: Path, unfinished: Path, wanted: Wanted) -> int:
    index = read_index(video)
    height, width = index.covering(wanted.height, wanted.width, wanted.short_side)
    height, width = height + height % 2, width + width % 2  # H.264 halves its colours
    # No B-frames and nothing that is slow to undo: these files are read far more often than written.
    options = {"crf": str(wanted.quality), "preset": "veryfast", "tune": "fastdecode", "bf": "0"}
    n_frames = 0
    with av.open(str(unfinished), "w") as container:
        stream = container.add_stream("libx264", rate=_RATE, options={**options, "g": str(wanted.group)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for pixels in all_frames(video, index, (height, width)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            container.mux(stream.encode(frame))
            n_frames += 1
        container.mux(stream.encode())
    if n_frames < len(index) - _BEFORE_A_KEY_FRAME:
        raise UnreadableVideoError(video, f"ends after {n_frames} of {len(index)} frames")
    return n_frames


def _write_latents(prepared: Path, unfinished: Path, wanted: Wanted) -> int:
    """Encode what the training will decode: the prepared video, cropped at its centre."""
    import torch
    from safetensors.torch import save

    from taehv_trainer.streaming import encode_in_parts
    from taehv_trainer.weights import load_model

    assert wanted.teacher is not None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = load_model(wanted.teacher).to(device).eval()
    index = read_index(prepared)
    top, left = (index.height - wanted.height) // 2, (index.width - wanted.width) // 2
    cropped = (
        pixels[top : top + wanted.height, left : left + wanted.width]
        for pixels in all_frames(prepared, index, (index.height, index.width))
    )
    latents = torch.cat([part.cpu() for part in encode_in_parts(teacher, cropped, _CHUNK)])
    unfinished.write_bytes(save({"latents": latents.contiguous()}))
    return len(latents)


if __name__ == "__main__":
    sys.exit(main())
