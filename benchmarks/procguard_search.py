"""Searching the logs of a ProcGuard group, beside ``grep -c`` on the same files.

    python benchmarks/procguard_search.py [MIB]

Prints the rate of each for a plain text, an expression and "errors only" in MIB of logs of eight ranks, their
ratio by time and by processor time (which a busy machine does not change), and for how long another thread of
the server, such as the one that answers heartbeats, had to wait meanwhile.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from platform_launch.procguard.server.logs.filtering import LineFilter
from platform_launch.procguard.server.logs.merged import MergedLog
from platform_launch.procguard.server.logs.store import Logs

RANKS = 8
GOAL = 0.3
LINE = b"2026-11-28 10:00:%02d INFO [rank %d] step %d loss 0.%04d lr 3e-4 tokens/s 12345 mem 40.1GiB\n"
SOUGHT: tuple[tuple[str, dict[str, object], list[str]], ...] = (
    ("plain text", {"text": "CUDA out of memory"}, ["-ciF", "CUDA out of memory"]),
    ("expression", {"text": r"loss (nan|inf)\b", "expression": True}, ["-ciE", r"loss (nan|inf)\b"]),
    (
        "errors only",
        {"errors": True},
        ["-cE", r"(Error|Exception)\b|\b(ERROR|FATAL|CRITICAL|Killed)\b|core dumped"],
    ),
)


def main() -> int:
    """Measure and print."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory() as folder:
        logs = Logs(Path(folder), 2**40)
        for rank in range(RANKS):
            block = b"".join(LINE % (n % 60, rank, n, n % 9999) for n in range(3000))
            size = 0
            while size < mib * 2**20 // RANKS:
                size = logs.append(f"gn{rank}-0", 1, size, block)
        files = sorted(str(path) for path in Path(folder).rglob("*.log"))
        total = sum(Path(path).stat().st_size for path in files) / 2**20
        worst = 0.0
        for name, sought, grep in SOUGHT:
            ours, ours_s, longest, late = _search(logs, sought)
            began, used = time.perf_counter(), os.times()
            subprocess.run(["grep", *grep, *files], stdout=subprocess.DEVNULL, check=False)
            theirs, after = time.perf_counter() - began, os.times()
            grep_s = sum(after[2:4]) - sum(used[2:4])
            ratio = theirs / ours
            worst = min(worst or ratio, ratio)
            print(
                f"{name:12} {total / ours:6.0f} MiB/s, grep {total / theirs:6.0f} MiB/s, ratio {ratio:.2f} "
                f"({grep_s / ours_s:.2f} by processor time); "
                f"longest request {longest:.2f} s; another thread waits {1000 * late:.1f} ms (p99)"
            )
        print(f"worst ratio {worst:.2f}, goal {GOAL}")
    return 0


def _search(logs: Logs, sought: dict[str, object]) -> tuple[float, float, float, float]:
    """Search all of it as a page does: seconds, those of the processor, the longest request, others' p99."""
    waits: list[float] = []
    done = threading.Event()

    def other() -> None:
        while not done.is_set():
            began = time.perf_counter()
            time.sleep(0.005)
            waits.append(time.perf_counter() - began - 0.005)

    thread = threading.Thread(target=other)
    thread.start()
    began, used, longest, place = time.perf_counter(), time.thread_time(), 0.0, None
    workers = [(rank, f"gn{rank}-0") for rank in range(RANKS)]
    while True:
        asked = time.perf_counter()
        log = MergedLog(logs, workers, 1, ended=True)
        page = log.after(place, 500, LineFilter(**sought))  # type: ignore[arg-type]
        longest, place = max(longest, time.perf_counter() - asked), page.after
        if not page.more:
            break
    took, used = time.perf_counter() - began, time.thread_time() - used
    done.set()
    thread.join()
    return took, used, longest, statistics.quantiles(waits, n=100)[98]


if __name__ == "__main__":
    raise SystemExit(main())
