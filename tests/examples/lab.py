"""Two nodes on this machine, through the same hand-off that a platform starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Return an environment in which the entrypoint finds this interpreter, and no job of its own."""
    return {**os.environ, "VIRTUAL_ENV": sys.prefix, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Start ``platform-launch`` with arguments, its output in one stream."""
    return subprocess.Popen(
        [sys.executable, "-m", "platform_launch", *arguments],
        env=environment(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def simulate(*arguments: str, folder: Path) -> str:
    """Run a simulation of two nodes that must succeed, and return its output.

    ``--no-roll-call`` saves each node an import of torch where the example is what is tested.
    """
    with start("simulate", "--nodes", "2", *arguments, folder=folder) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    return output


def until(process: subprocess.Popen[str], text: str) -> None:
    """Read a process's output up to a line with ``text``; the tests' own time limit ends a silent one."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"ended without {text!r}:\n{''.join(seen)}")


def said(output: str, text: str) -> list[str]:
    """Return the lines with ``text``, from the text on; a training's last words may come twice."""
    return [line[line.index(text) :] for line in output.splitlines() if text in line]
