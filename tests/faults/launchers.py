"""The launchers that faults are tried on: an adapter is how a node is started, and how its words are read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PORT = 29500


@dataclass(frozen=True)
class NodeCommand:
    """What one node is to run: ``script`` is the training's command line, without the interpreter.

    ``options`` are the launcher's own flags, for faults that only it knows.
    """

    rank: int
    nnodes: int
    nproc: int
    script: Sequence[str]
    logs: Path
    options: Sequence[str] = ()
    master: str = "node0"


@dataclass(frozen=True)
class Launcher:
    """``command`` and ``env`` start a node; ``blamed`` returns the node ranks that its output holds guilty.

    ``own_options`` tells whether faults with flags of platform-launch can be tried on it.
    """

    name: str
    command: Callable[[NodeCommand], list[str]]
    env: Callable[[NodeCommand], Mapping[str, str]]
    blamed: Callable[[str, int], set[int]]
    own_options: bool = False


def _platform_launch(node: NodeCommand) -> list[str]:
    launcher = ("--launcher", "python") if node.nproc == 1 else ("--launcher", "torchrun")
    processes = () if node.nproc == 1 else ("--nproc-per-node", str(node.nproc))
    return [
        *(sys.executable, str(ROOT / "platform_launch" / "__main__.py"), "run", "--no-doctor"),
        *(*launcher, *processes, "--log-dir", str(node.logs), "--node-timeout", "8", *node.options),
        *("--script", node.script[0], "--", *node.script[1:]),
    ]


def _platform_variables(node: NodeCommand) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(node.nnodes),
        "RANK": str(node.rank),
        "MASTER_ADDR": node.master,
        "MASTER_PORT": str(PORT),
        "OMP_NUM_THREADS": "1",
        "PLATFORM_LAUNCH_VERBOSE": "1",
    }


# The events that say which node it was (platform_launch/events.py), whatever their words are.
_OURS = re.compile(
    r"\[(?:node-failed|node-left-early|node-vanished|node-stopped|node-started-anew|launcher-killed|launcher-silent)\b[^\]]*\bnode=(\d+)"
    r"|\[(?:coordinator-gone|coordinator-silent)\b"
)


def _blamed_by_ours(output: str, _nproc: int) -> set[int]:
    return {int(found[1] or 0) for found in _OURS.finditer(output)}


def _torchrun(node: NodeCommand) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(node.nnodes)),
        *("--nproc-per-node", str(node.nproc), "--node-rank", str(node.rank)),
        *("--master-addr", node.master, "--master-port", str(PORT), *node.options, *node.script),
    ]


_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?rank\s*:\s*(\d+)", re.DOTALL)


def _blamed_by_torchrun(output: str, nproc: int) -> set[int]:
    return {int(rank) // nproc for rank in _ROOT_CAUSE.findall(output)}


PLATFORM_LAUNCH = Launcher(
    "platform-launch", _platform_launch, _platform_variables, _blamed_by_ours, own_options=True
)
TORCHRUN = Launcher("torchrun", _torchrun, lambda _node: {"OMP_NUM_THREADS": "1"}, _blamed_by_torchrun)
LAUNCHERS = {launcher.name: launcher for launcher in (PLATFORM_LAUNCH, TORCHRUN)}
