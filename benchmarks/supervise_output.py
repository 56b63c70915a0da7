"""What output costs under the launcher: blocks beside ``| tee file``, and short lines beside bare torchrun.

200 MB of output take at most 1.5 times as long as through ``tee``. Both end in a file and in a pipe that is
read; start and end of the supervisor are part of its time.

A million short lines pass at 0.8 of torchrun's rate at least, into a pipe and into a terminal. torchrun hands
its own descriptors to the ranks and keeps no log. The script measures its own rate, so no start counts.

Runs alternate, medians count.

    python benchmarks/supervise_output.py
"""

from __future__ import annotations

import argparse
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOTAL_BYTES = 200_000_000
RUNS = 7
LIMIT = 1.5
LINE_RUNS = 5
LOWEST_RATE = 0.8

PRODUCER = f"""
import os
lines = (b"Step 12345/100000 | Loss: 0.1512 | PSNR: 18.52 dB | GPU: 45GB | 0.9 steps/sec" + b"\\n") * 800
left = {TOTAL_BYTES}
while left > 0:
    left -= os.write(1, lines[:left])
"""
SUPERVISED = """
import os, sys
from pathlib import Path
from platform_launch.supervise import Command, Supervisor
command = Command((sys.executable, "-S", "-c", sys.argv[3]), dict(os.environ))
sys.exit(Supervisor(command, log_path=Path(sys.argv[1]), prefix=sys.argv[2]).run().exit_code)
"""
# As a rank prints: through Python's buffer, which a terminal flushes at the end of each line.
LINES = """
import sys, time
began = time.perf_counter()
for number in range(1_000_000):
    print(number, "0.1512")
sys.stdout.flush()
open(sys.argv[1], "w").write(str(1_000_000 / (time.perf_counter() - began)))
"""


def tee(log: Path) -> float:
    """Return the seconds of producer | tee log | reader."""
    return seconds('"$0" -S -c "$1" | tee "$2" | cat >/dev/null', sys.executable, PRODUCER, str(log))


def supervised(log: Path, prefix: str) -> float:
    """Return the seconds of supervisor(producer) | reader."""
    return seconds(
        '"$0" -c "$1" "$2" "$3" "$4" | cat >/dev/null', sys.executable, SUPERVISED, str(log), prefix, PRODUCER
    )


def seconds(script: str, *arguments: str) -> float:
    """Return how long a shell script takes."""
    began = time.perf_counter()
    subprocess.run(["sh", "-c", script, *arguments], cwd=ROOT, check=True, timeout=60)
    return time.perf_counter() - began


def in_a_pipe(command: Sequence[str]) -> None:
    """Run a command whose output goes through a pipe to a reader."""
    subprocess.run(["sh", "-c", '"$0" "$@" | cat >/dev/null', *command], cwd=ROOT, check=True, timeout=300)


def on_a_terminal(command: Sequence[str]) -> None:
    """Run a command on a terminal that takes its output at once."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(command[0], list(command))
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # a terminal says so when its last writer is gone
        pass
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0


def line_rates(folder: Path) -> dict[str, dict[str, float]]:
    """Return the lines per second of both, for a pipe and for a terminal."""
    script, rate = folder / "lines.py", folder / "rate"
    script.write_text(LINES)
    launcher = ("-m", "platform_launch", "run", "--launcher", "torchrun", "--log-dir", str(folder / "logs"))
    commands = {
        "torchrun": ("-m", "torch.distributed.run", "--nproc-per-node", "1", str(script), str(rate)),
        "launcher": (*launcher, "--no-doctor", "--script", str(script), "--", str(rate)),
    }
    found: dict[str, dict[str, float]] = {}
    for place, run in (("pipe", in_a_pipe), ("terminal", on_a_terminal)):
        rates: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(LINE_RUNS):
            for name, words in commands.items():
                run((sys.executable, *words))
                rates[name].append(float(rate.read_text()))
        found[place] = {name: statistics.median(measured) for name, measured in rates.items()}
    return found


def main() -> int:
    """Print the ratios; fail when one is beyond its limit."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    times: dict[str, list[float]] = {"tee": [], "supervisor": [], "supervisor with node prefix": []}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        for _ in range(RUNS):
            for name, measured in times.items():
                if name == "tee":
                    measured.append(tee(log))
                    assert log.stat().st_size == TOTAL_BYTES
                else:
                    prefix = "[node 1] " if "prefix" in name else ""
                    measured.append(supervised(log, prefix))
                    assert log.stat().st_size >= TOTAL_BYTES
                log.unlink()
        lines = line_rates(Path(folder))
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    for name, median in medians.items():
        ratio = median / medians["tee"]
        print(f"{name:28} {median:6.2f} s   {ratio:5.2f} × tee   (limit {LIMIT:g})")
    good = all(median <= LIMIT * medians["tee"] for median in medians.values())
    for place, rates in lines.items():
        ratio = rates["launcher"] / rates["torchrun"]
        good = good and ratio >= LOWEST_RATE
        print(
            f"short lines into a {place:9} {rates['launcher'] / 1e6:6.2f} M/s {ratio:5.2f} × torchrun "
            f"(at least {LOWEST_RATE:g})"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
