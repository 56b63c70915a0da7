"""How long until something happens, beside accelerate: the rehearsal, and the script's first line.

    python benchmarks/startup.py [RUNS]

1. ``run --print-env`` as a whole process ÷ ``accelerate launch --help``.
2. From the shell entrypoint to the script's first line ÷ bare ``accelerate launch`` with the same flags.
3. Two nodes on this machine: until both scripts have begun ÷ bare ``torchrun`` with the same two nodes.

Both sides are run in turn; the ratio is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from platform_launch.hardware import ports

ROOT = Path(__file__).resolve().parent.parent
ENTRYPOINT = str(ROOT / "start_multinode_platform.sh")
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]
# Both sides keep their bytecode, as where they are installed.
ENV = {**os.environ, "VIRTUAL_ENV": sys.prefix, "PYTHONDONTWRITEBYTECODE": ""}
# The first line is the script's own word for when it got there.
SCRIPT = "import os, sys, time\nopen(sys.argv[1], 'w').write(repr(time.time()))\n"


def whole(command: list[str]) -> float:
    """Return the seconds a process takes from start to end."""
    began = time.perf_counter()
    subprocess.run(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def until_first_line(command: list[str], mark: Path) -> float:
    """Return the seconds from the start of a launch to the first line of its script."""
    began = time.time()
    subprocess.run(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return float(mark.read_text()) - began


def until_two_first_lines(commands: Sequence[list[str]], marks: Sequence[Path], port: int) -> float:
    """Return the seconds from the start of two nodes until the scripts of both have begun."""
    began = time.time()
    nodes = [
        subprocess.Popen(
            command,
            env={
                **ENV,
                "NNODES": "2",
                "NODE_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank, command in enumerate(commands)
    ]
    codes = [node.wait() for node in nodes]
    if any(codes):
        raise SystemExit("one of the two nodes failed")
    return max(float(mark.read_text()) for mark in marks) - began


def two_nodes(folder: Path, script: Path) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return how this launcher and torchrun start the same two nodes."""
    marks = [folder / f"mark{rank}" for rank in range(2)]

    def ours() -> float:
        options = ["--launcher", "torchrun", "--nproc-per-node", "1", "--script", str(script)]
        commands = [
            [ENTRYPOINT, *options, "--log-dir", str(folder / str(rank)), "--", str(mark)]
            for rank, mark in enumerate(marks)
        ]
        return until_two_first_lines(commands, marks, ports.free())

    def peer() -> float:
        port = ports.free()
        commands = [
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank)),
                *("--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *(str(script), str(mark)),
            ]
            for rank, mark in enumerate(marks)
        ]
        return until_two_first_lines(commands, marks, port)

    return ours, peer


def compare(what: str, ours: Callable[[], float], peer: Callable[[], float], runs: int, goal: float) -> bool:
    """Run both in turn, print medians and the median ratio, and tell whether it meets the goal."""
    ours(), peer()  # warm up: bytecode and page cache
    pairs = [(ours(), peer()) for _ in range(runs)]
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{what}: {mine:.2f} s ÷ {theirs:.2f} s = {ratio:.3f} (goal {goal:.2f})")
    return ratio <= goal


def main() -> int:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="?", type=int, default=5, help="default: %(default)s")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        script, mark = Path(folder) / "first_line.py", Path(folder) / "mark"
        script.write_text(SCRIPT)
        launch = [ENTRYPOINT, "--script", str(script), "--log-dir", folder]
        printed = subprocess.run(
            [*launch, "--print-env", "--format", "json", "--", str(mark)],
            env=ENV,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        bare = json.loads(printed)["argv"]
        fast = compare(
            "run --print-env ÷ accelerate launch --help",
            lambda: whole([*launch, "--print-env"]),
            lambda: whole([*LAUNCH, "--help"]),
            runs,
            0.10,
        )
        close = compare(
            "entrypoint to first line ÷ accelerate launch",
            lambda: until_first_line([*launch, "--", str(mark)], mark),
            lambda: until_first_line(bare, mark),
            runs,
            1.10,
        )
        together = compare(
            "two nodes to both first lines ÷ torchrun", *two_nodes(Path(folder), script), runs, 1.15
        )
    return 0 if fast and close and together else 1


if __name__ == "__main__":
    sys.exit(main())
