"""Where a fault happens: hosts made of network namespaces, a launcher on each, what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.faults.fault import Fault, Owed
from tests.faults.launchers import Launcher, NodeCommand
from tests.lab.netns import Host, hosts
from tests.lab.waiting import until
from tests.rendezvous.cluster import Node, guard_process, kill_everything, processes_on

SCRIPT = Path(__file__).with_name("training.py")
# Until all nodes have ended; a launcher that takes longer has not noticed.
LIMIT_S = 90.0
_LEAVE_S = 10.0


@dataclass(frozen=True)
class Observed:
    """What became of a job. ``seconds`` is from the fault to the end of the last node, None: it did not end.

    ``blamed`` are the nodes that each node's output holds guilty; ``left`` is what was left behind.
    """

    codes: tuple[int | None, ...]
    seconds: float | None
    blamed: tuple[frozenset[int], ...]
    left: tuple[str, ...]
    output: str = field(repr=False, default="")

    def told(self, fault: Fault) -> str:
        """Return who is told what, in a word."""
        if fault.node is None:
            return f"names {_nodes(self.blamed)}" if any(self.blamed) else "nothing"
        heard = [rank for rank in range(fault.nnodes) if rank not in fault.silenced]
        right = [rank for rank in heard if self.blamed[rank] == {fault.node}]
        if right == heard:
            return f"all: node {fault.node}"
        wrong = [rank for rank in heard if self.blamed[rank] - {fault.node}]
        if wrong:
            return f"node {wrong[0]} blames {_nodes([self.blamed[wrong[0]]])}"
        return f"node {right[0]} only" if right else "nobody"

    def problems(self, fault: Fault) -> list[str]:
        """Return what a launcher still owes."""
        heard = [rank for rank in range(fault.nnodes) if rank not in fault.silenced]
        codes = [self.codes[rank] for rank in heard]
        found = [f"left behind: {one}" for one in self.left]
        if None in codes:
            return [f"not ended after {LIMIT_S:.0f} s", *found]
        if fault.owed is Owed.SURVIVES and any(codes):
            found.append(f"exit codes {codes} instead of 0")
        elif fault.owed in (Owed.ENDS, Owed.REFUSED) and not all(codes):
            found.append(f"exit codes {codes}: nobody learns of it")
        if fault.code is not None and set(codes) != {fault.code}:
            found.append(f"exit codes {codes} instead of {fault.code}")
        if fault.node is not None and self.told(fault) != f"all: node {fault.node}":
            found.append(f"told: {self.told(fault)}")
        return found


def _nodes(blamed: Iterable[frozenset[int]]) -> str:
    ranks = sorted(set().union(*blamed))
    return "node " + " and ".join(map(str, ranks)) if ranks else "nobody"


class Stage:
    """One fault's hosts and nodes: its ``prepare`` may change what is set here, ``inject`` acts on it."""

    def __init__(self, fault: Fault, launcher: Launcher, machines: tuple[Host, ...], folder: Path) -> None:
        self.fault = fault
        self.launcher = launcher
        self.machines = machines
        self.folder = folder
        self.nodes: list[Node] = []
        self.variables: dict[int, dict[str, str]] = {}
        self.wrapped: dict[int, tuple[str, ...]] = {}
        self.script_of: dict[int, tuple[str | bytes, ...]] = {}
        self.absent: set[int] = set()
        self.master = "node0"
        self.streams: dict[int, int] = {}
        self._undo: list[Callable[[], None]] = []

    def later(self, undo: Callable[[], object]) -> None:
        """Have something done when it is over."""
        self._undo.append(lambda: (undo(), None)[1])

    def start(self, rank: int, **changes: object) -> Node:
        """Start a node; ``changes`` are those of its command."""
        gloo = ("--gloo",) if self.fault.nproc > 1 else ()
        script = (str(SCRIPT), *self.fault.script, *gloo, *self.script_of.get(rank, ()))
        options = self.fault.options if self.launcher.own_options else ()
        command = NodeCommand(
            rank,
            self.fault.nnodes,
            self.fault.nproc,
            script,
            self.logs(rank),
            options,
            self.master,
        )
        command = replace(command, **changes)  # type: ignore[arg-type]
        temporary = self.folder / f"tmp{rank}"
        temporary.mkdir(exist_ok=True)
        env = {**self.launcher.env(command), "TMPDIR": str(temporary), **self.variables.get(rank, {})}
        shared = self._shared_memory(rank)
        shared.mkdir(exist_ok=True)
        own = ("sh", "-c", f'mount --bind {shared} /dev/shm && exec "$0" "$@"')
        argv = [*own, *self.wrapped.get(rank, ()), *self.launcher.command(command)]
        streams = {"stdout": self.streams[rank]} if rank in self.streams else {}
        host = self.machines[rank % len(self.machines)]
        return Node(host.popen(argv, env=env, start_new_session=True, **streams))

    def logs(self, rank: int) -> Path:
        """Return where a node's log is to be."""
        return self.folder / f"logs{rank}"

    def _shared_memory(self, rank: int) -> Path:
        """Return what a node sees as /dev/shm, as containers have one of their own."""
        return self.folder / f"shm{rank}"

    def run(self) -> Observed:
        """Play it through."""
        began = time.monotonic()
        try:
            self.fault.prepare(self)
            self.nodes = [self.start(rank) for rank in range(self.fault.nnodes) if rank not in self.absent]
            if self.fault.starts:
                self._await_training()
                time.sleep(1.0)
            began = time.monotonic()
            self.fault.inject(self)
            codes = self._codes(began)
            seconds = None if None in codes else max(0.0, time.monotonic() - began)
            self._take_back()
            left = self._left()
        finally:
            self._take_back()
            for machine in self.machines:
                kill_everything(machine)
        blamed = tuple(frozenset(self.launcher.blamed(node.text, self.fault.nproc)) for node in self.nodes)
        output = "\n\n".join(node.text for node in self.nodes)
        return Observed(tuple(codes), seconds, blamed, tuple(left), output)

    def _await_training(self) -> None:
        heard = [node for node in self.nodes if node.process.stdout is not None]

        def trains() -> bool:
            said = [node.said("training on rank") for node in heard]
            assert all(said) or not any(node.process.poll() for node in self.nodes)
            return all(said)

        try:
            until(trains)
        except AssertionError as error:
            raise AssertionError("\n\n".join(node.text for node in self.nodes)) from error

    def _take_back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _codes(self, began: float) -> list[int | None]:
        deadline = began + LIMIT_S
        codes: list[int | None] = []
        for rank, node in enumerate(self.nodes):
            if rank in self.fault.silenced and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
            try:
                code = node.process.wait(max(0.1, deadline - time.monotonic()))
                codes.append(code if code >= 0 else 128 - code)
            except subprocess.TimeoutExpired:
                codes.append(None)
        for node in self.nodes:
            node.ended()
        return codes

    def _left(self) -> list[str]:
        """Return what is still there a while after the last node has ended."""
        deadline = time.monotonic() + _LEAVE_S
        while True:
            left = [
                f"process {_name(pid)} on {host.name}"
                for host in self.machines
                for pid in processes_on(host)
                if _name(pid)
            ]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        for rank in range(len(self.nodes)):
            if rank not in self.fault.silenced:
                left += [
                    f"{entry.name} in TMPDIR"
                    for pattern in ("*", "platform_launch_*/*")
                    for entry in (self.folder / f"tmp{rank}").glob(pattern)
                    if entry.name.startswith(("platform_launch_exit", "observe"))
                ]
                left += [f"/dev/shm/{entry.name}" for entry in self._shared_memory(rank).iterdir()]
        for machine in self.machines:
            left += [f"port {port} listens on {machine.name}" for port in _listening(machine)]
        return left

    # What a fault does.

    def launcher_pid(self, rank: int) -> int:
        """Return the process id of a node's launcher."""
        return self.nodes[rank].process.pid

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Signal a node's launcher."""
        with suppress(ProcessLookupError):
            os.kill(self.launcher_pid(rank), number)

    def guard(self, rank: int) -> int:
        """Return the process that ends what a killed launcher leaves (platform-launch only)."""
        return guard_process(self.nodes[rank])

    def power_off(self, rank: int) -> None:
        """End everything on a host at once, and its network with it."""
        self.machines[rank].cut()
        self.later(self.machines[rank].heal)
        kill_everything(self.machines[rank])

    def ip(self, rank: int, line: str, undo: str = "") -> None:
        """Change a host's network."""
        namespace = self.machines[rank].namespace
        subprocess.run(["ip", "-n", namespace, *line.split()], check=True, capture_output=True)
        if undo:
            self.later(
                lambda: subprocess.run(
                    ["ip", "-n", namespace, *undo.split()], check=False, capture_output=True
                )
            )


_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp


def _listening(host: Host) -> list[int]:
    """Return the TCP ports that something listens on."""
    with host.entered():
        tables = [Path("/proc/thread-self/net", name).read_text() for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table.splitlines()[1:]]
    return sorted({int(fields[1].rpartition(":")[2], 16) for fields in sockets if fields[3] == _LISTENS})


def _name(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        if stat.rpartition(")")[2].split()[0] in "ZX":
            return ""
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        # Without folders, which are others on another machine.
        return " ".join(Path(word).name if word.startswith("/") else word for word in words)[:80].strip()
    except OSError:
        return ""


@contextmanager
def _folder() -> Iterator[Path]:
    name = tempfile.mkdtemp(prefix="faults-")
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def play(fault: Fault, launcher: Launcher, machines: tuple[Host, ...] | None = None) -> Observed:
    """Let a fault happen to a job under a launcher, on hosts of its own or on these."""
    with _folder() as folder:
        if machines is not None:
            return Stage(fault, launcher, machines[: fault.nnodes], folder).run()
        with hosts(fault.nnodes) as made:
            return Stage(fault, launcher, made, folder).run()
