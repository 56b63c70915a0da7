"""How long `platform-launch why` takes for a big log, beside `grep -E` with the same patterns.

Three logs, each with one failure at its end: a training's usual progress; one where every line is a new text
(a language model's samples); and one full of lines that look like errors and are none. grep gets the
signatures' patterns (Python's notation translated) and only prints matching lines: no order, no tracebacks.

    python benchmarks/why_speed.py [--mib 1024]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from platform_launch.why.signatures import Role, catalogue

FAILURE = """\
[node 0] [rank3]: Traceback (most recent call last):
[node 0] [rank3]:   File "/workspace/train.py", line 88, in <module>
[node 0] [rank3]:     main()
[node 0] [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
LIMIT_S = 120


def progress(chance: random.Random) -> Iterator[str]:
    """Yield what a training prints: steps, bars that redraw, NCCL's remarks."""
    for step in range(20_000):
        yield (
            f"[node 0] Step {step}/100000 | Loss: {chance.random():.4f} | PSNR: {chance.uniform(9, 30):.1f} "
            "dB | GPU: 45GB | 0.9 steps/sec\n"
        )
        if step % 3 == 0:
            yield (
                f"[node 0] gpu-{step % 16}:{step}:{step} [{step % 8}] NCCL INFO Channel {step % 16:02d}/0 : "
                f"{step % 16}[{step % 8}] -> {step % 7}[{step % 8}] [send] via NET/IB/{step % 8}/GDRDMA\n"
            )
        if step % 5 == 0:
            bar = "#" * (step % 30)
            yield f"[node 0] \r {step % 100}%|{bar:<30}| {step}/100000 [00:{step % 60:02d}<11:11]\n"


def samples(chance: random.Random) -> Iterator[str]:
    """Yield lines that are all different, of ten thousand words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(10_000)]
    for step in range(20_000):
        yield f"2026-11-21 03:04:05,123 INFO sample {step}: {' '.join(chance.choices(words, k=12))}\n"


def false_alarms(chance: random.Random) -> Iterator[str]:
    """Yield warnings that speak of errors and mean none."""
    for step in range(20_000):
        yield f"WARNING cache {step} could not find entry {chance.random()}: no error, will not fail\n"


def write(path: Path, lines: Callable[[random.Random], Iterator[str]], size_bytes: int) -> None:
    """Fill a file with the lines over and over, and end it with the failure."""
    block = "".join(lines(random.Random(1))).encode()
    with path.open("wb") as file:
        while file.tell() + len(block) < size_bytes:
            file.write(block)
        file.write(FAILURE.encode())


def patterns() -> str:
    """Return all patterns as grep's extended regular expressions; look-arounds, which it lacks, dropped."""
    known = [p for s in catalogue().signatures if s.role is not Role.NOISE for p in s.patterns]
    plain = (re.sub(r"\(\?[!=<][^)]*\)", "", p).replace("(?:", "(").replace(r"\d", "[0-9]") for p in known)
    return "|".join((*plain, "Traceback"))


def timed(argv: list[str]) -> tuple[float, str, int]:
    """Run a command; return seconds, its output and its peak memory in MiB."""
    began = time.monotonic()
    limited = ["timeout", str(LIMIT_S), *argv]
    child = subprocess.Popen(
        limited, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert child.stdout is not None
    with child.stdout:
        output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return time.monotonic() - began, output, usage.ru_maxrss // 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of each log")
    size = parser.parse_args().mib << 20
    why = [sys.executable, "-m", "platform_launch", "why"]
    grep = ["grep", "-a", "-E", patterns()]
    print(f"{'log':<14}{'MiB':>6}{'why s':>9}{'grep s':>9}{'ratio':>8}{'why MiB of memory':>19}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in (progress, samples, false_alarms):
            log = Path(folder) / f"{kind.__name__}.log"
            write(log, kind, size)
            subprocess.run(["cat", log], stdout=subprocess.DEVNULL, check=True)  # into the page cache
            ours, verdict, peak = timed([*why, str(log)])
            assert "cuda_out_of_memory" in verdict, verdict
            theirs, _, _ = timed([*grep, str(log)])
            row = (
                f"{kind.__name__:<14}{size >> 20:>6}{ours:>9.2f}{theirs:>9.2f}{ours / theirs:>8.2f}{peak:>19}"
            )
            print(row, flush=True)
            log.unlink()


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    main()
