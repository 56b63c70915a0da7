"""How long `platform-launch why` takes for a big log, beside `grep -c` of the same file.

Logs of any content, each with one failure at its end: a training's usual progress; text that is new in
every line (a language model's samples); warnings that speak of errors and mean none; one error over and
over; errors that are worded differently each time; and a loader's caught tracebacks, alike and all
different. grep counts the lines with a word that failures are told with (its best case: no order, no ranks,
no tracebacks). The ratio is of processor time, so that other work on the machine does not count; why's
start, which a small log pays too, is shown in the first line.

    python benchmarks/why_speed.py [--mib 1024] [--format json] [KIND...]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

FAILURE = """\
[node 0] [rank3]: Traceback (most recent call last):
[node 0] [rank3]:   File "/workspace/train.py", line 88, in <module>
[node 0] [rank3]:     main()
[node 0] [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
WORDS = "error|fail|exception|traceback|killed|fatal|abort"
LIMIT_S = 900
GOAL = 3.0
COLUMNS = ("log", "mib", "why_s", "grep_c_s", "ratio", "why_memory_mib")
ROW = "{:<14}{:>6}{:>9}{:>11}{:>8}{:>19}"
HEAD = ROW.format("log", "MiB", "why s", "grep -c s", "ratio", "why MiB of memory")
BLOCK_LINES = 20_000


def progress(chance: random.Random) -> Iterator[str]:
    """Yield what a training prints: steps, bars that redraw, NCCL's remarks."""
    for step in count():
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


def _words(chance: random.Random) -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(10_000)]


def samples(chance: random.Random) -> Iterator[str]:
    """Yield lines that are all different, of ten thousand words."""
    words = _words(chance)
    for step in count():
        yield f"2026-11-21 03:04:05,123 INFO sample {step}: {' '.join(chance.choices(words, k=12))}\n"


def false_alarms(chance: random.Random) -> Iterator[str]:
    """Yield warnings that speak of errors and mean none."""
    for step in count():
        yield f"WARNING cache {step} could not find entry {chance.random()}: no error, will not fail\n"


def one_error(_: random.Random) -> Iterator[str]:
    """Yield the same error of eight ranks."""
    for step in count():
        yield f"[rank{step % 8}]: ERROR cannot read shard {step} (Connection reset by peer)\n"


def many_errors(chance: random.Random) -> Iterator[str]:
    """Yield errors that are worded differently each time."""
    words = _words(chance)
    for step in count():
        yield f"2026-11-21 03:04:05,123 ERROR sample {step} failed: {' '.join(chance.choices(words, k=8))}\n"


def caught(chance: random.Random) -> Iterator[str]:
    """Yield the tracebacks of a loader that goes on."""
    words = _words(chance)
    for step in count():
        yield f"WARNING:loader:sample {step} is skipped\nTraceback (most recent call last):\n"
        yield f'  File "/workspace/data.py", line {step % 300}, in __getitem__\n'
        yield "    return decode(self.files[i])\n"
        yield f"ValueError: corrupt clip {step}: {' '.join(chance.choices(words, k=3 * (step % 2)))}\n"


KINDS: tuple[Callable[[random.Random], Iterator[str]], ...] = (
    progress, samples, false_alarms, one_error, many_errors, caught,
)  # fmt: skip


def write(path: Path, lines: Callable[[random.Random], Iterator[str]], size_bytes: int) -> None:
    """Fill a file with lines, each block new, and end it with the failure."""
    source = lines(random.Random(1))
    with path.open("wb") as file:
        while file.tell() < size_bytes:
            file.write("".join(next(source) for _ in range(BLOCK_LINES)).encode())
        file.write(FAILURE.encode())


def timed(argv: list[str]) -> tuple[float, str, int]:
    """Run a command; return seconds of processor time, its output and its peak memory in MiB."""
    child = subprocess.Popen(
        ["timeout", str(LIMIT_S), *argv],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert child.stdout is not None
    with child.stdout:
        output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, output, usage.ru_maxrss // 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of each log")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("kinds", nargs="*", default=[kind.__name__ for kind in KINDS], metavar="KIND")
    options = parser.parse_args()
    size = options.mib << 20
    rows = []
    why = [sys.executable, "-m", "platform_launch", "why"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "small.log"
        log.write_text(FAILURE)
        start, _, _ = timed([*why, str(log)])
        table = options.format == "table"
        if table:
            print(f"why of a log of four lines: {start:.2f} s")
            print(HEAD)
        for kind in KINDS:
            if kind.__name__ not in options.kinds:
                continue
            log = Path(folder) / f"{kind.__name__}.log"
            write(log, kind, size)
            subprocess.run(["cat", log], stdout=subprocess.DEVNULL, check=True)  # into the page cache
            ours, verdict, peak = timed([*why, str(log)])
            assert "cuda_out_of_memory" in verdict, verdict
            theirs, _, _ = timed(["grep", "-a", "-c", "-i", "-E", WORDS, str(log)])
            ratio = ours / max(theirs, 0.001)
            row = (kind.__name__, options.mib, round(ours, 2), round(theirs, 2), round(ratio, 1), peak)
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            if table:
                print(ROW.format(*row), flush=True)
            log.unlink()
        if not table:
            print(json.dumps({"small_log_s": round(start, 2), "goal_ratio": GOAL, "logs": rows}, indent=2))


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    main()
