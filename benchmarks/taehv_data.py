"""How many clips a core decodes: from videos as they come, and from prepared ones.

A 1080p video with long groups of pictures, made from the shipped sample, is read by the training's own
dataset: as it is, with several clips a decoding pass, and after `prepare_data.py`. Where torchcodec is
installed it reads the same clips from the same files. Seconds are those of the process on all its threads,
so that other work on the machine counts little. Fails unless prepared data gives LIMIT times the clips.

    python benchmarks/taehv_data.py [--clips 12] [--output FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "taehv"))
from taehv_trainer.clips import ClipDataset
from taehv_trainer.config import TrainConfig
from taehv_trainer.sources import SAMPLE, Source
from taehv_trainer.video import read_index

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 5.0
GPUS_NEED = 400  # clips a second for 8 H100s


def make_large(path: Path, n_frames: int = 190) -> None:
    """Write the sample as 1080p with a key frame every 250 frames, as encoders do by default."""
    with av.open(str(SAMPLE)) as source, av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast", "g": "250"})
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        for number, frame in enumerate(source.decode(video=0)):
            if number == n_frames:
                break
            scaled = frame.reformat(1920, 1080, "yuv420p", interpolation="BICUBIC")
            scaled.pts = None
            container.mux(stream.encode(scaled))
        container.mux(stream.encode())


def clips_per_second(dataset: ClipDataset, n_clips: int) -> float:
    """Cut clips as the training does; return clips a second of one core."""
    dataset[0, 0]  # the index of the file is made once
    start, n_cut, number = time.process_time(), 0, 0
    while n_cut < n_clips:
        n_cut += len(dataset[0, number % len(dataset)])
        number += 1
    return n_cut / (time.process_time() - start)


def torchcodec_clips_per_second(path: Path, n_clips: int) -> float:
    """Decode and scale clips of the same file with torchcodec."""
    from torch.nn.functional import interpolate
    from torchcodec.decoders import VideoDecoder

    n_frames = len(read_index(path))
    start = time.process_time()
    for number in range(n_clips):
        decoder = VideoDecoder(str(path), seek_mode="approximate", num_ffmpeg_threads=1)
        first = number * (n_frames - 12) // n_clips
        frames = decoder.get_frames_in_range(first, first + 12).data
        if frames.shape[-2] != 480:
            interpolate(frames.float(), (480, 854), mode="bicubic")
    return n_clips / (time.process_time() - start)


def main() -> int:
    """Run the benchmark; returns 1 when prepared data is not worth it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--output", type=Path, help="write the result there too")
    given = parser.parse_args()
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        large, prepared = folder / "large" / "city.mp4", folder / "prepared" / "videos" / "city.mp4.mp4"
        large.parent.mkdir()
        make_large(large)
        command = [sys.executable, str(ROOT / "examples" / "taehv" / "prepare_data.py")]
        command += ["--data-root", str(large.parent), "--output", str(folder / "prepared")]
        subprocess.run([*command, "--height", "480", "--width", "720", "--workers", "1"], check=True)

        def measure(name: str, run: Callable[[], float]) -> None:
            rates[name] = round(run(), 2)
            print(json.dumps({name: rates[name]}), flush=True)

        for name, file in (("1080p", large), ("prepared", prepared)):
            for per_read in (1, 4):
                config = TrainConfig(
                    cache_mib=0, clips_per_video=given.clips, clips_per_read=per_read, batch_size=4
                )
                dataset = ClipDataset([Source(file)], config)
                measure(f"{name}, {per_read} a read", lambda d=dataset: clips_per_second(d, given.clips))  # type: ignore[misc]
            if importlib.util.find_spec("torchcodec"):
                measure(f"{name}, torchcodec", lambda f=file: torchcodec_clips_per_second(f, given.clips))  # type: ignore[misc]
    gain = rates["prepared, 1 a read"] / rates["1080p, 1 a read"]
    result = {
        "clips_per_core_second": rates,
        "prepared_over_1080p": round(gain, 1),
        "limit": LIMIT,
        "cores_for_8_h100": {name: round(GPUS_NEED / rate) for name, rate in rates.items()},
        "torchcodec": "measured" if importlib.util.find_spec("torchcodec") else "not installed",
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return 0 if gain >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
