"""What a screen that nobody watches shows of a job on two nodes, beside the job's own output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.waiting import LIMIT_S

SCRIPT = """
import os, time
print("training", flush=True)
node = os.environ.get("GROUP_RANK") or os.environ["NODE_RANK"]
if node == os.environ.get("FAILING"):
    raise RuntimeError("corrupt clip in batch 1")
if node == os.environ.get("BARRIER"):
    print("Error waiting on exit barrier", flush=True)
time.sleep(60 if "FAILING" in os.environ else 0.1)
"""
OURS = re.compile(r"\[node (\d)\] \d\d:\d\d:\d\d (?:\[|==)")


def screen(folder: Path, *options: str, launcher: str = "python", **variables: str) -> list[str]:
    """Return the lines of a screen that both nodes share."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    simulate = [sys.executable, "-m", "platform_launch", "simulate", "--nodes", "2", "--launcher", launcher]
    done = subprocess.run(
        [*simulate, "--script", script, "--log-dir", folder / "logs", "--no-doctor", *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout.splitlines()


def of_nodes(shown: list[str]) -> tuple[list[str], list[str]]:
    """Return the launcher's lines, of node 0 and of node 1."""
    ours = [(found[1], line) for line in shown if (found := OURS.match(line))]
    return [line for rank, line in ours if rank == "0"], [line for rank, line in ours if rank == "1"]


def lines(folder: Path, *options: str, **variables: str) -> tuple[list[str], list[str]]:
    return of_nodes(screen(folder, *options, **variables))


def test_success_takes_at_most_six_lines_and_the_log_has_the_rest(tmp_path: Path) -> None:
    first, other = lines(tmp_path)
    assert len(first) <= 6, first
    assert len(other) <= 3, other
    assert "node 0 of 2" in first[1]
    assert "train.py" in first[1]
    assert "[training-finished]" in other[-1]
    (log,) = (tmp_path / "logs").glob("*_node0_*.log")
    assert "== 1/5 Environment" in log.read_text()
    assert "[record-written]" in log.read_text()


@pytest.mark.parametrize("failing", ["0", "1"])
def test_a_failure_ends_with_the_root_cause_told_once(tmp_path: Path, failing: str) -> None:
    shown = screen(tmp_path, FAILING=failing)
    first, other = of_nodes(shown)
    assert len(first) + len(other) <= 15, [*first, *other]
    assert sum("corrupt clip" in line and "cause:" in line for line in first) == 1
    assert "retry:" in first[-1]
    assert f"node {failing}" in other[-1]
    assert "traceback" not in "".join([*first, *other])
    # No line of the launcher comes after what node 0 and node 1 report last.
    assert shown[-1] in (first[-1], other[-1])


def test_harmless_errors_of_torchrun_are_explained_on_the_screen(tmp_path: Path) -> None:
    _, other = lines(tmp_path, BARRIER="1")
    assert sum("[exit-barrier-left]" in line for line in other) == 1, other


@pytest.mark.nightly  # torch is imported four times
@pytest.mark.train
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_success_under_a_launcher_takes_six_lines_too(tmp_path: Path, launcher: str) -> None:
    shown = screen(tmp_path, launcher=launcher)
    beside = [line for line in shown if "] training" not in line]
    for node in ("0", "1"):
        assert len([line for line in beside if line.startswith(f"[node {node}]")]) <= 6, beside


@pytest.mark.nightly  # torch is imported four times; tests/supervise/test_tracebacks.py guards the main of it
@pytest.mark.train
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_failure_under_a_launcher_takes_fifteen_lines_too(tmp_path: Path, launcher: str) -> None:
    shown = screen(tmp_path, launcher=launcher, FAILING="1")
    raised = shown.index("[node 1] Traceback (most recent call last):")
    of_script = {*range(raised, raised + 4), *(at for at, line in enumerate(shown) if "] training" in line)}
    # What torchrun and accelerate write counts, too.
    beside = [line for at, line in enumerate(shown) if at not in of_script]
    assert len(beside) <= 15, beside
    assert sum("[traceback-folded]" in line for line in beside) >= 1
    (log,) = (tmp_path / "logs").glob("*_node1_*.log")
    assert "ChildFailedError" in log.read_text()
    assert "[traceback-folded]" not in log.read_text()


def test_verbose_shows_what_the_log_has(tmp_path: Path) -> None:
    first, _ = lines(tmp_path, "--verbose")
    assert any("== 1/5 Environment" in line for line in first)
