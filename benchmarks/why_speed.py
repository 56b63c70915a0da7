"""How long `platform-launch why` takes for a big log, beside `grep -c` of the same file.

Logs of any content, each with one failure at its end: a training's usual progress; text that is new in
every line (a language model's samples); lines of 20 KB of words; warnings that speak of errors and mean
none; one error over and over; errors that go on differently each time, and such as have no words in common;
a loader's caught tracebacks, alike and all different; NCCL's remarks on each collective; a bar that never
ends its line; JSON; colours; base64; and 64 ranks that take turns. grep counts the lines with a word that
failures are told with (its best case: no order, no ranks, no tracebacks). The ratio is of processor time, so
that other work on the machine does not count, and of several runs the median is shown; why's start, which a
small log pays too, is shown in the first line.

    python benchmarks/why_speed.py [--mib 1024] [--runs 3] [--format json] [KIND...]
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

FAILURE = """\
[node 0] [rank3]: Traceback (most recent call last):
[node 0] [rank3]:   File "/workspace/train.py", line 88, in <module>
[node 0] [rank3]:     main()
[node 0] [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
WORDS = "error|fail|exception|traceback|killed|fatal|abort"
TELLING = (
    "aborted", "cannot", "crashed", "error", "exception", "failed", "invalid", "is missing", "lost",
    "not found", "refused", "reset by peer", "timed out", "unable to", "was killed",
)  # fmt: skip
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


def long_lines(chance: random.Random) -> Iterator[str]:
    """Yield lines of three thousand words, whole documents for instance."""
    words = _words(chance)
    while True:
        yield f"{' '.join(chance.choices(words, k=3000))}\n"


def false_alarms(chance: random.Random) -> Iterator[str]:
    """Yield warnings that speak of errors and mean none."""
    for step in count():
        yield f"WARNING cache {step} could not find entry {chance.random()}: no error, will not fail\n"


def one_error(_: random.Random) -> Iterator[str]:
    """Yield the same error of eight ranks."""
    for step in count():
        yield f"[rank{step % 8}]: ERROR cannot read shard {step} (Connection reset by peer)\n"


def many_errors(chance: random.Random) -> Iterator[str]:
    """Yield errors that begin alike and go on differently each time."""
    words = _words(chance)
    for step in count():
        yield f"2026-11-21 03:04:05,123 ERROR sample {step} failed: {' '.join(chance.choices(words, k=8))}\n"


def worded_errors(chance: random.Random) -> Iterator[str]:
    """Yield errors that have nothing in common but some words of failures."""
    words = _words(chance)
    while True:
        before, after = chance.choices(words, k=4), chance.choices(words, k=4)
        yield f"{' '.join(before)} {chance.choice(TELLING)} {' '.join(after)}\n"


def caught(chance: random.Random) -> Iterator[str]:
    """Yield the tracebacks of a loader that goes on."""
    words = _words(chance)
    for step in count():
        yield f"WARNING:loader:sample {step} is skipped\nTraceback (most recent call last):\n"
        yield f'  File "/workspace/data.py", line {step % 300}, in __getitem__\n'
        yield "    return decode(self.files[i])\n"
        yield f"ValueError: corrupt clip {step}: {' '.join(chance.choices(words, k=3 * (step % 2)))}\n"


def nccl_info(chance: random.Random) -> Iterator[str]:
    """Yield what NCCL_DEBUG=INFO says of each collective of 64 ranks."""
    for step in count():
        rank = step % 64
        here = f"gpu-{rank // 8}:{4000 + rank}:{4300 + rank} [{rank % 8}] NCCL INFO"
        yield (
            f"{here} AllReduce: opCount {step:x} sendbuff 0x7f{step:010x} recvbuff 0x7f{step:010x} count "
            f"{chance.randint(1, 1 << 24)} datatype 9 op 0 root 0 comm 0x55d0c0ff [nranks=64] stream 0x55d1\n"
        )
        if step % 4 == 0:
            yield (
                f"{here} Channel {step % 16:02d}/0 : {rank}[{rank % 8}] -> {(rank + 8) % 64}[{rank % 8}] "
                f"[send] via NET/IB/{rank % 8}/GDRDMA\n"
            )


def one_line(chance: random.Random) -> Iterator[str]:
    """Yield a bar that redraws itself and never ends its line."""
    for step in count():
        bar = "\N{FULL BLOCK}" * (step % 100 // 10)
        yield (
            f"\rEpoch {step // 1000}:  {step % 100}%|{bar:<10}| {step}/90000 [{step % 60:02d}:11<11:11,  "
            f"{chance.uniform(1, 9):.2f}it/s, loss={chance.random():.3f}, v_num=7]"
        )


def json_lines(chance: random.Random) -> Iterator[str]:
    """Yield structured logs."""
    for step in count():
        yield (
            f'{{"timestamp": "2026-11-21T03:04:{step % 60:02d}.123Z", "level": "INFO", "logger": "trainer", '
            f'"rank": {step % 64}, "message": "train step", "step": {step}, "loss": {chance.random():.4f}, '
            f'"grad_norm": {chance.random():.3f}, "lr": 3e-05, "tokens_per_second": {chance.random():.1f}}}\n'
        )


def coloured(chance: random.Random) -> Iterator[str]:
    """Yield what Ray prints of workers, in colours, with what it says of lines that repeat."""
    for step in count():
        repeated = f" \x1b[32m[repeated {step % 63}x across cluster]\x1b[0m" if step % 4 == 0 else ""
        yield (
            f"\x1b[36m(WorkerDict pid={20000 + step % 64}, ip=10.0.0.{step % 8})\x1b[0m \x1b[1;32mINFO\x1b[0m"
            f" rollout step \x1b[33m{step}\x1b[0m: reward {chance.random():.3f} kl {chance.random():.5f} "
            f"throughput {chance.uniform(1e3, 9e3):.1f} tokens/s{repeated}\n"
        )


def base64_lines(chance: random.Random) -> Iterator[str]:
    """Yield pictures as base64, each in one line of two MiB."""
    for step in count():
        yield f'{{"step": {step}, "image": "{base64.b64encode(chance.randbytes(3 << 19)).decode()}"}}\n'


def torchrun_ranks(chance: random.Random) -> Iterator[str]:
    """Yield iterations of 64 ranks that take turns, as Megatron-LM tells them behind torchrun's marks."""
    for step in count():
        yield (
            f"[default{step % 8}]:[rank{step % 64}]:  iteration {step // 64:8d}/  500000 | consumed samples: "
            f"{step:12d} | elapsed time per iteration (ms): {chance.uniform(900, 999):.1f} | learning rate: "
            f"3.0E-04 | global batch size: 512 | lm loss: {chance.random():.6E} | loss scale: 1.0 | grad "
            f"norm: {chance.random():.3f} | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
        )


KINDS: tuple[Callable[[random.Random], Iterator[str]], ...] = (
    progress, samples, long_lines, false_alarms, one_error, many_errors, worded_errors, caught,
    nccl_info, one_line, json_lines, coloured, base64_lines, torchrun_ranks,
)  # fmt: skip


LONG = (base64_lines, long_lines)


def write(path: Path, lines: Callable[[random.Random], Iterator[str]], size_bytes: int) -> None:
    """Fill a file with lines, each block new, and end it with the failure."""
    source = lines(random.Random(1))
    with path.open("wb") as file:
        while file.tell() < size_bytes:
            file.write("".join(islice(source, BLOCK_LINES if lines not in LONG else 1)).encode())
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
    parser.add_argument("--runs", type=int, default=3, help="of why and grep, in turn")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("kinds", nargs="*", default=[kind.__name__ for kind in KINDS], metavar="KIND")
    options = parser.parse_args()
    size = options.mib << 20
    rows = []
    why = [sys.executable, "-m", "platform_launch", "why"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "small.log"
        log.write_text(FAILURE)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        timed([*why, str(log)])  # compiles what an installation has compiled
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
            pairs = []
            for _ in range(options.runs):
                ours, verdict, peak = timed([*why, str(log)])
                assert "cuda_out_of_memory" in verdict, verdict
                theirs, _, _ = timed(["grep", "-a", "-c", "-i", "-E", WORDS, str(log)])
                pairs.append((ours / max(theirs, 0.001), ours, theirs, peak))
            ratio, ours, theirs, peak = sorted(pairs)[options.runs // 2]
            row = (kind.__name__, options.mib, round(ours, 2), round(theirs, 2), round(ratio, 2), peak)
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            if table:
                print(ROW.format(*row), flush=True)
            log.unlink()
        if not table:
            print(json.dumps({"small_log_s": round(start, 2), "goal_ratio": GOAL, "logs": rows}, indent=2))


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    main()
