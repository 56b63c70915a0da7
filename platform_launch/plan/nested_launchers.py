"""Commands that are launchers themselves: which of them can learn this node's rank, and which cannot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from platform_launch.errors import UsageError
from platform_launch.plan.program import Program
from platform_launch.text import Phrase
from platform_launch.topology import Topology


@dataclass(frozen=True)
class _Launcher:
    """A launcher that reads no variables for the node's rank.

    ``names`` are its commands and modules. ``flags``: with any of them, the user gives the rank, or runs on
    this node only. ``instead`` is the form that works.
    """

    names: tuple[str, ...]
    flags: tuple[str, ...]
    instead: str


# torchrun is not here: it takes its defaults from PET_ variables. What the others read, by their parsers:
# accelerate 1.15 commands/launch.py, deepspeed 0.19 launcher/runner.py; MPI and srun start all nodes at once.
_LAUNCHERS = (
    _Launcher(
        ("accelerate launch", "accelerate-launch", "accelerate.commands.launch"),
        ("--machine_rank", "--machine-rank"),
        Phrase(
            "leave `accelerate launch` out: --script FILE or --module NAME; "
            "--deepspeed-config FILE for its yaml"
        ),
    ),
    _Launcher(
        ("deepspeed", "ds", "deepspeed.launcher.runner"),
        ("--no_ssh", "--node_rank"),
        Phrase(
            "leave `deepspeed` out: --launcher torchrun --script FILE, or --script FILE "
            "--deepspeed-config FILE for accelerate's yaml"
        ),
    ),
    _Launcher(
        ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun", "srun", "pdsh"),
        (),
        Phrase(
            "it starts all nodes itself: start it once, without platform-launch, or pass --launcher torchrun "
            "--script FILE"
        ),
    ),
)


def refuse_launchers_without_place(program: Program, topology: Topology) -> None:
    """Raise UsageError if on several nodes each would run the whole job, or wait for the others forever."""
    if topology.nnodes == 1:
        return
    words = (os.path.basename(program.target), *program.arguments)  # noqa: PTH119
    for launcher in _LAUNCHERS:
        for name in launcher.names:
            rest = _after(words, name.split(" "))
            if rest is None or any(word.partition("=")[0] in launcher.flags for word in rest):
                continue
            raise UsageError(
                Phrase(
                    "{name} would start on each of {nodes} nodes without knowing which one it is on",
                    name=name,
                    nodes=topology.nnodes,
                ),
                launcher.instead,
            )


def _after(words: Sequence[str], name: list[str]) -> Sequence[str] | None:
    """Return the arguments of a launcher's command, also of ``python -m``; None for other commands."""
    if words[0].startswith("python") and "-m" in words[1:]:
        words = words[words.index("-m") + 1 :]
    return words[len(name) :] if list(words[: len(name)]) == name else None
