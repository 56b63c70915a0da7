"""Nodes of a job on lab hosts, started as a platform does, with every output line and its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.lab.cgroup import Group
from tests.lab.netns import Host
from tests.lab.waiting import LIMIT_S as LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("script.py")


class Node:
    """One node's launcher. ``lines`` holds the seconds since its start and the text of each line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[tuple[float, str]] = []
        self._began = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self.process.stdout is None:  # it speaks into a file
            return
        with self.process.stdout as output:
            for line in output:
                self.lines.append((time.monotonic() - self._began, line.rstrip("\n")))

    @property
    def text(self) -> str:
        return "\n".join(f"{seconds:6.2f} {line}" for seconds, line in self.lines)

    def said(self, text: str) -> bool:
        return any(text in line for _, line in self.lines)

    def count(self, text: str) -> int:
        """Return how many lines so far contain a text."""
        return sum(text in line for _, line in list(self.lines))

    def when(self, text: str) -> float:
        """Wait until the node prints a text; return when (``time.monotonic``)."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for seconds, line in list(self.lines):
                if text in line:
                    return self._began + seconds
            assert self._reader.is_alive(), f"ended without {text!r}:\n{self.text}"
            time.sleep(0.02)
        raise AssertionError(f"never said {text!r}:\n{self.text}")

    def code(self) -> int:
        """Wait for the end and return the exit code."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"does not end:\n{self.text}") from None
        self.ended()
        return code

    def ended(self) -> None:
        """Wait for the last lines; leftover processes may keep the output open."""
        self._reader.join(5)


def start(
    host: Host,
    rank: int,
    nnodes: int,
    *script_arguments: str,
    logs: Path,
    options: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    within: Group | None = None,
    script: Path = SCRIPT,
    build: Path = ROOT,
) -> Node:
    """Start a node whose training is one plain process, in a control group or not.

    ``build`` is the folder that holds the package.
    """
    command = [
        *(sys.executable, str(build / "platform_launch" / "__main__.py"), "run"),
        *("--launcher", "python", "--no-doctor", "--script", str(script)),
        *("--log-dir", str(logs / f"node{rank}"), *options, "--", *script_arguments),
    ]
    variables = {
        "WORLD_SIZE": str(nnodes),
        "RANK": str(rank),
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        **(env or {}),
    }
    return Node(host.popen(within.around(command) if within else command, env=variables))


def processes_on(host: Host) -> list[int]:
    """Return every process on a host."""
    found = subprocess.run(
        ["ip", "netns", "pids", host.namespace], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return [int(pid) for pid in found.stdout.split()]


def kill_everything(host: Host) -> None:
    """Kill every process of a host at once, as a power cut does, but for the packets of its kernel.

    They are frozen first, so that none sees another die.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in processes_on(host):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def guard_process(node: Node) -> int:
    """Return the process id of the guard, which kills what a killed launcher leaves behind."""
    return _child(node, b"guard.py\0")


def _child(node: Node, words: bytes) -> int:
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children").read_text().split()
    for child in map(int, children):
        if words in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise AssertionError(f"no {words!r} among {children}")
