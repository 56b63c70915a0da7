"""200 MB of output through the supervisor beside the same through ``| tee file``: at most 1.5 times the time.

Both end in a file and in a pipe that is read; runs alternate, medians count. Start and end of the supervisor
are part of its time.

    python benchmarks/supervise_output.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOTAL_BYTES = 200_000_000
RUNS = 7
LIMIT = 1.5

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


def main() -> int:
    """Print the ratios; fail when one is above the limit."""
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
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    for name, median in medians.items():
        ratio = median / medians["tee"]
        print(f"{name:28} {median:6.2f} s   {ratio:5.2f} × tee   (limit {LIMIT:g})")
    return 0 if all(median <= LIMIT * medians["tee"] for median in medians.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
