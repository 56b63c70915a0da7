"""A cluster that waits: hosts with their own home, password file, name file and SSH server."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.lab.needs import Need
from tests.lab.netns import Host, hosts
from tests.lab.waiting import LIMIT_S as LIMIT_S
from tests.lab.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DIST_LAUNCH = (
    sys.executable,
    "-c",
    "import sys; from platform_launch.cli.dist_launch import main; sys.exit(main())",
)

_MISSING = [
    *(
        tool
        for tool in ("sshd", "ssh", "ssh-keygen")
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ),
    *(module for module in ("asyncssh", "torch") if find_spec(module) is None),
]
requires_ssh = Need("sshd", lambda: f"needs {', '.join(_MISSING)}" if _MISSING else "").mark


@dataclass
class Node:
    """One host and its ``dist-launch wait``. ``home`` holds everything that is this host's own.

    ``before`` is a command that every command of dist-launch is given to, such as SHOW_GROUPS of the lab.
    """

    host: Host
    rank: int
    home: Path
    env: dict[str, str]
    before: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    @property
    def info(self) -> Path:
        return self.home / "cluster_info.json"

    @property
    def state(self) -> Path:
        return self.home / "cluster_info.json.d"

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait(self, *options: str, env: Mapping[str, str] | None = None) -> None:
        """Start ``dist-launch wait``."""
        self.lines.clear()
        self.process = self.host.popen(
            [*self.before, *DIST_LAUNCH, "wait", *options], env={**self.env, **(env or {})}, cwd=self.home
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))

    def says(self, text: str) -> None:
        """Wait until the node's wait says something."""
        deadline = time.monotonic() + LIMIT_S
        while not any(text in line for line in list(self.lines)):
            assert time.monotonic() < deadline, f"node {self.rank} never said {text!r}:\n{self.text}"
            ended = self.process is None or self.process.poll() is not None
            if ended:
                if self._reader is not None:
                    self._reader.join(5)  # it has the last lines by then
                assert text in self.text, f"node {self.rank} ended without {text!r}:\n{self.text}"
            time.sleep(0.02)

    def leave(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the wait with a signal and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.code()

    def kill(self) -> None:
        """Kill the wait, and it alone: what it has started may live on, and hold its output."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(LIMIT_S)

    def code(self) -> int:
        """Wait for the end of the wait and return its exit code."""
        assert self.process is not None
        code = self.process.wait(LIMIT_S)
        assert self._reader is not None
        self._reader.join(5)
        return code

    def dist_launch(
        self,
        *arguments: str | Path,
        timeout_s: float = LIMIT_S,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of dist-launch on this host to its end."""
        return self.host.run(
            [*self.before, *DIST_LAUNCH, *arguments],
            env={**self.env, **(env or {})},
            timeout_s=timeout_s,
            cwd=cwd or self.home,
        )

    def start(
        self, *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command of dist-launch on this host."""
        command = [*self.before, *DIST_LAUNCH, *arguments]
        return self.host.popen(command, env={**self.env, **(env or {})}, cwd=cwd or self.home)

    def cluster(self) -> dict[str, Any]:
        """Return the cluster information as it stands on this host."""
        values: dict[str, Any] = json.loads(self.info.read_text())
        return values


def make(machines: Sequence[Host], folder: Path) -> list[Node]:
    """Give each host a home of its own."""
    nodes = []
    for rank, host in enumerate(machines):
        home = folder / host.name
        (home / ".ssh").mkdir(mode=0o700, parents=True)
        home.chmod(0o700)
        passwd = Path("/etc/passwd").read_text()
        (host.etc / "passwd").write_text(re.sub(r"(?m)^(root:[^:]*:0:0:[^:]*:)[^:]*:", rf"\1{home}:", passwd))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "NCCL_"))}
        env = {
            **kept,
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "CLUSTER_INFO_FILE": str(home / "cluster_info.json"),
            "WORLD_SIZE": str(len(machines)),
            "RANK": str(rank),
            "MASTER_ADDR": machines[0].name,
            "MASTER_PORT": "29500",
        }
        nodes.append(Node(host, rank, home, env))
    return nodes


@contextmanager
def idle(wanted: int, folder: Path, *, strangers: int = 0) -> Iterator[tuple[list[Node], tuple[Host, ...]]]:
    """Give hosts of a cluster where nothing runs yet, and others in the same network."""
    folder.mkdir(exist_ok=True)
    with hosts(wanted + strangers) as made:
        nodes = make(made[:wanted], folder)
        with ended(nodes):
            yield nodes, made[wanted:]


@contextmanager
def waiting(nodes: Sequence[Node], *options: str) -> Iterator[None]:
    """Let all nodes wait with private SSH servers, and end them."""
    with ended(nodes):
        for node in nodes:
            node.wait("--sshd", *options)
        nodes[0].says(f"all {len(nodes)} nodes wait")
        yield


@contextmanager
def ended(nodes: Sequence[Node]) -> Iterator[None]:
    """End whatever wait the nodes still run."""
    try:
        yield
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGTERM)
        for node in nodes:
            if node.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    node.code()


@contextmanager
def sshd(node: Node, folder: Path) -> Iterator[None]:
    """The SSH server of an image: it has nothing to do with dist-launch, and has a new host key each time."""
    folder.mkdir(exist_ok=True)
    key = folder / "host_key"
    key.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    config = script(
        folder / "config",
        f"Port 2025\nHostKey {key}\nStrictModes no\nUsePAM no\nPidFile none\nLogLevel QUIET\n",
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    server = node.host.popen(["/usr/sbin/sshd", "-D", "-f", str(config)], stdout=subprocess.DEVNULL)
    try:
        listening = [
            "sh",
            "-c",
            "ss -ltn 2>/dev/null | grep -q :2025 || grep -q ':07E9 .* 0A ' /proc/net/tcp",
        ]
        eventually("sshd listens", lambda: node.host.run(listening).returncode == 0)
        yield
    finally:
        server.kill()
        server.wait(LIMIT_S)


def jobs_on(node: Node, name: str = "") -> list[int]:
    """Return the processes of a job, or of all, on a host, found by other means than the product's."""
    marked = f"DIST_LAUNCH_JOB={node.state}:{f'{name}:' if name else ''}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if marked in (entry / "environ").read_bytes() and _lives(entry):
                    found.append(int(entry.name))
    return found


def _lives(entry: Path) -> bool:
    return entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def eventually(what: str, true: Any) -> None:
    """Wait until something becomes true."""
    until(true, what, pause_s=0.05)


def script(path: Path, text: str) -> Path:
    """Write a script that bash runs."""
    path.write_text(text)
    return path
