"""Runs several processes of one node, which fail together: ``A=0,1 B=5,6 -- command``.

Each ``NAME=v0,v1,…`` gives process i the i-th value. Launchers without an agent of their own (JAX with one
process per GPU) run through this, below the supervisor, which forwards signals and writes the log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from platform_launch.console import Console
from platform_launch.supervise.processes import Command, how_it_ended, shell_code
from platform_launch.supervise.watch import DEFAULT_GRACE_S, Watch


def run_side_by_side(commands: Sequence[Command], *, grace_s: float = DEFAULT_GRACE_S) -> int:
    """Run commands on our own stdout and stderr; return 0, or the code of the one that failed first.

    After the first failure the others are asked to stop, and killed ``grace_s`` later. Main thread only; see
    :class:`platform_launch.supervise.watch.Watch`.
    """
    failure = 0
    index_of: dict[int, int] = {}

    def on_end(pid: int, code: int) -> None:
        nonlocal failure
        if code and not failure:
            failure = shell_code(code)
            if watch.stopped_by is None:
                watch.stop(f"process {index_of[pid]} of this node ended with {how_it_ended(code)}")

    watch = Watch(grace_s=grace_s, report=Console().report, ended=on_end)
    with watch:
        for index, command in enumerate(commands):
            index_of[watch.start(command, {})] = index
        watch.wait()
    return failure


def _commands(words: Sequence[str], env: Mapping[str, str]) -> list[Command]:
    """Read the command line that ``plan/starts.py`` writes."""
    cut = words.index("--")
    lists = {name: values.split(",") for name, _, values in (word.partition("=") for word in words[:cut])}
    return [
        Command(tuple(words[cut + 1 :]), {**env, **dict(zip(lists, values, strict=True))})
        for values in zip(*lists.values(), strict=True)
    ]


def main(words: Sequence[str]) -> int:
    """Run the processes of one node."""
    grace_s = DEFAULT_GRACE_S
    if words[0] == "--grace-period":
        grace_s, words = float(words[1]), words[2:]
    return run_side_by_side(_commands(words, os.environ), grace_s=grace_s)
