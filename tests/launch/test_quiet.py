"""What a screen that nobody watches shows of a job on two nodes, beside the job's own output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.lab.waiting import LIMIT_S

SCRIPT = """
import os, time
print("training", flush=True)
if os.environ["NODE_RANK"] == os.environ.get("FAILING"):
    raise RuntimeError("corrupt clip in batch 1")
time.sleep(60 if "FAILING" in os.environ else 0.1)
"""
OURS = re.compile(r"\[node (\d)\] \d\d:\d\d:\d\d (?:\[|==)")


def lines(folder: Path, *options: str, **variables: str) -> tuple[list[str], list[str]]:
    """Return the launcher's lines on the screen, of node 0 and of node 1."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    simulate = [sys.executable, "-m", "platform_launch", "simulate", "--nodes", "2", "--launcher", "python"]
    done = subprocess.run(
        [*simulate, "--script", script, "--log-dir", folder / "logs", "--no-doctor", *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    ours = [(found[1], line) for line in done.stdout.splitlines() if (found := OURS.match(line))]
    return [line for rank, line in ours if rank == "0"], [line for rank, line in ours if rank == "1"]


def test_success_takes_at_most_six_lines_on_node_0_and_less_elsewhere(tmp_path: Path) -> None:
    first, other = lines(tmp_path)
    assert len(first) <= 6, first
    assert len(other) <= 3, other
    assert "node 0 of 2" in first[1]
    assert "train.py" in first[1]
    assert "[training-finished]" in other[-1]


def test_a_failure_takes_fifteen_lines_and_ends_with_the_cause(tmp_path: Path) -> None:
    first, other = lines(tmp_path, FAILING="1")
    assert len(first) + len(other) <= 15, [*first, *other]
    assert sum("corrupt clip" in line and "cause:" in line for line in first) == 1
    assert "[node-quoted" in first[-1]
    assert "cause:" in other[-1]


def test_what_the_screen_does_not_show_is_in_the_log_and_with_verbose(tmp_path: Path) -> None:
    lines(tmp_path)
    (log,) = (tmp_path / "logs").glob("*_node0_*.log")
    assert "== 1/5 Environment" in log.read_text()
    assert "[record-written]" in log.read_text()
    first, _ = lines(tmp_path, "--verbose")
    assert any("== 1/5 Environment" in line for line in first)
