"""Several nodes of one job on this machine: their variables, their merged output, and the job's end."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Timer

from platform_launch.console import STDOUT, Console, log_line, terminal_line
from platform_launch.console.outlet import Outlet
from platform_launch.errors import InstallationError
from platform_launch.events import CATALOGUE, Event, event, marked
from platform_launch.hardware import Hardware, ports
from platform_launch.helper import PACKAGE
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.supervise import DEFAULT_GRACE_S, Command, Watch
from platform_launch.supervise.channel import Channel, Receiver, open_pipe
from platform_launch.supervise.processes import how_it_ended, shell_code
from platform_launch.supervise.text import LogText, RedrawnLines, WholeLines
from platform_launch.text import Phrase, wrapped
from platform_launch.why.sources import events_of, node_of

# A node's own supervisor must have time to kill and report leftover processes before it is killed itself.
_NODE_END_S = 15.0
_NARROWEST = 40
_OWN = re.compile(rb"\[node \d+\] \d\d:\d\d:\d\d \[(INFO|SUCCESS|WARN|ERROR)\] ")
_LABEL = re.compile(r"\[node \d+\] ")
# After a failure, connected nodes end by themselves and report why; an early signal would interrupt them.
_STOP_AFTER_S = 5.0
_LEVELS = {b"INFO": 36, b"SUCCESS": 32, b"WARN": 33, b"ERROR": 31}
_COLOURS = (36, 33, 35, 32, 34, 31)


def platform_variables(nodes: int) -> list[dict[str, str]]:
    """Return the variables of the simplest platform: four names that count nodes, and a rendezvous port.

    Raises InstallationError if the nodes cannot connect to each other on this machine.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))  # sends nothing
        except OSError as error:
            raise InstallationError(
                Phrase("this machine cannot connect to 127.0.0.1: {problem}", problem=error.strerror),
                "bring up its loopback interface: ip link set lo up",
            ) from error
    with ports.listen(0) as one, ports.listen(0) as other:
        master_port, rendezvous_port = one.getsockname()[1], other.getsockname()[1]
    return [
        {
            "WORLD_SIZE": str(nodes),
            "RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
            "INIT_MASTER_PORT": str(rendezvous_port),
        }
        for rank in range(nodes)
    ]


def node_variables(
    machine: Hardware, nodes: int, nproc_per_node: int, console: Console
) -> list[dict[str, str]]:
    """Split the machine among the nodes: its GPUs if there is at least one per node, otherwise only its
    CPUs.
    """
    gpus = [gpu.uuid if gpu.mig else str(gpu.index) for gpu in machine.gpus.devices]
    each = len(gpus) // nodes
    threads = max(1, int(machine.host.cpus // (nodes * nproc_per_node)))
    # All nodes are this machine, so loopback works for them, whatever the host name resolves to.
    common = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    if each:
        return [
            {**common, "CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * each : (rank + 1) * each])}
            for rank in range(nodes)
        ]
    if gpus:
        console.report(event("gpus-not-split", gpus=len(gpus), nodes=nodes))
    return [{**common, "CUDA_VISIBLE_DEVICES": ""} for _ in range(nodes)]


def entrypoint(root: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command a platform would start, and variables that make it use this interpreter.

    The shell entrypoint prefers the active environment. An interpreter that is not the ``bin/python3`` of an
    environment is started directly.
    """
    script, own = root / "start_multinode_platform.sh", Path(sys.prefix, "bin", "python3")
    if script.is_file() and own.is_file() and own.samefile(sys.executable):
        return (str(script),), {"VIRTUAL_ENV": sys.prefix}
    return (sys.executable, str(PACKAGE / "__main__.py"), "run"), {}


def simulate(
    commands: Sequence[Command], labels: Sequence[str], *, grace_s: float = DEFAULT_GRACE_S, may_lose: int = 0
) -> tuple[int, int]:
    """Run the nodes of a job together; return 0, or the exit code of the node that failed first, and how many
    nodes failed.

    A failure stops the other nodes after some seconds, unless the job ``may_lose`` so many; a signal to this
    process stops them at once. ``labels`` name the nodes (``node 0``): on a terminal, a node's own
    ``[node 0]`` is coloured. ``grace_s`` is the nodes' own grace period. Main thread only; see
    :class:`platform_launch.supervise.Watch`.
    """
    return _Simulation(labels, grace_s, may_lose).run(commands)


class _Simulation:
    def __init__(self, labels: Sequence[str], grace_s: float, may_lose: int) -> None:
        self._labels = labels
        self._may_lose = may_lose
        self._outlet = Outlet(STDOUT, lambda _error: None)
        self._label_of: dict[int, str] = {}
        self._failures: list[int] = []
        self._timer: Timer | None = None
        self._watch = Watch(grace_s=grace_s + _NODE_END_S, report=self._report, ended=self._on_end)

    def run(self, commands: Sequence[Command]) -> tuple[int, int]:
        with ExitStack() as stack:
            stack.callback(self._outlet.close)
            stack.enter_context(self._watch)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, nothing)
            live = LiveLine(self._outlet) if os.isatty(STDOUT) else None
            for index, (command, label) in enumerate(zip(commands, self._labels, strict=True)):
                colour = _COLOURS[index % len(_COLOURS)] if os.isatty(STDOUT) else None
                reading, writing = open_pipe()
                self._watch.follow(Channel(reading, NodeLines(self._outlet, label, colour, live)))
                try:
                    pid = self._watch.start(command, {0: nothing, 1: writing, 2: writing})
                finally:
                    os.close(writing)
                self._label_of[pid] = label
            self._watch.wait()
            if self._timer is not None:
                self._timer.cancel()
        failed = len(self._failures)
        return (self._failures[0] if failed > self._may_lose else 0), failed

    def _on_end(self, pid: int, code: int) -> None:
        if code == 0:
            return
        self._failures.append(shell_code(code))
        text = f"{self._label_of[pid]} ended with {how_it_ended(code)}"
        if len(self._failures) <= self._may_lose:
            self._report(event("simulated-node-lost", what=text))
        elif self._watch.stopped_by is None and self._timer is None:
            self._timer = Timer(_STOP_AFTER_S, self._watch.stop, [text])
            self._timer.daemon = True
            self._timer.start()

    def _report(self, event: Event) -> None:
        text = terminal_line(event) if os.isatty(STDOUT) else log_line(event)
        self._outlet.write(f"{text}\n".encode(errors="backslashreplace"))


def conclude(
    written: Sequence[Path],
    plan: LaunchPlan,
    nodes: int,
    finished: int,
    code: int,
    duration_s: float,
    *,
    verbose: bool,
) -> None:
    """Report how the job ended and what to do next, on standard output, as the nodes do.

    ``written`` are the new logs in the folder, which may include other launches'. Unless ``verbose``, a root
    cause that a node has reported stays the last line.
    """
    own = [log for log in written if _is_of(plan, log)]
    rank = _first_failed(log.with_suffix(".json") for log in own) if code else None
    console, is_reported = Console(number=STDOUT), False
    rows, logs = [("nodes", str(nodes)), ("trained", _trained(plan))], plan.log_path.parent
    if rank is not None:
        log = next((log for log in own if node_of(log.name) == rank), None)
        ended = event("simulated-node-failed", node=rank, log=str(log or "none was written"))
        last = {one.id for one in (events_of(log) or () if log else ())}
        is_reported = not verbose and not last.isdisjoint(("verdict", "node-quoted"))
        rows += [
            ("log", str(log or "")),
            ("next", f"platform-launch logs {logs} --level WARN; platform-launch why {logs}"),
        ]
    elif code == 0:
        folder = plan.log_path.parent
        ended = event(
            "simulation-finished", finished=finished, nodes=nodes, logs=str(folder), duration_s=duration_s
        )
        rows += [
            ("logs", f"platform-launch logs {folder}"),
            ("next", Phrase("the same command on each node, with run for simulate")),
        ]
    else:  # stopped by a signal
        console.close()
        return
    if not is_reported:
        console.report(ended)
    failed = Phrase("node {rank} failed first", rank=rank)
    done = Phrase("{finished} of {nodes} nodes finished", finished=finished, nodes=nodes)
    title = done if rank is None else failed
    console.banner(title, rows, ended.level)
    console.close()


def _is_of(plan: LaunchPlan, log: Path) -> bool:
    """Return whether a node of this job wrote a log: no other job has its master port."""
    master = f"{plan.topology.master_addr}:{plan.topology.master_port}"
    return any(
        event.id == "launch-opened" and event.fields.get("master") == master for event in events_of(log) or ()
    )


def _trained(plan: LaunchPlan) -> str:
    config = f" with {plan.training.config}" if plan.training.config else ""
    return f"{plan.training.program.title}{config}"


def _without_mark(text: str) -> str:
    """Remove an event's mark, which is for logs and pipes; keep a finding's id, which a page explains."""
    found = marked(_LABEL.sub("", text, count=1))
    return text[: text.rindex(f" [{found[1].id}")] if found and found[1].id in CATALOGUE else text


class LiveLine:
    """The last line of a terminal, with the progress bar of one node; whole lines are printed above it.

    It shows the bar of the node that drew one first until it is done: two would alternate too fast to read.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._shown = b""
        self._owner: object = None

    @property
    def columns(self) -> int:
        """The maximum width of a line."""
        with suppress(OSError):
            return max(_NARROWEST, os.get_terminal_size(STDOUT).columns - 1)
        return 80

    def above(self, lines: bytes) -> None:
        """Write whole lines above the bar."""
        if lines:
            self._outlet.write((b"\r\x1b[K" if self._shown else b"") + lines + self._shown)

    def show(self, bar: bytes, owner: object) -> None:
        """Draw a node's bar in place of its last state; an empty one removes it."""
        if self._owner not in (None, owner) or (bar and self._outlet.blocked):
            return
        self._owner = owner if bar else None
        if bar or self._shown:
            self._outlet.write(b"\r\x1b[K" + bar)
        self._shown = bar


class NodeLines(Receiver):
    """Writes a node's output in whole lines; progress bars every few seconds, or to the ``live`` line."""

    def __init__(self, outlet: Outlet, label: str, colour: int | None, live: LiveLine | None = None) -> None:
        self.outlet = outlet
        self._live = live
        self._bars = RedrawnLines()
        self._label = f"[{label}]".encode()
        self._painted = self._label if colour is None else b"\x1b[%dm%b\x1b[0m" % (colour, self._label)
        self._text = LogText()
        self._lines = WholeLines()

    def feed(self, data: bytes) -> None:
        """Write the complete lines."""
        if self._live is None:
            self._write(self._lines.feed(self._text.feed(data)))
            return
        lines, bar = self._bars.feed(data)
        if bar == b"":
            self._live.show(b"", self)
        self._live.above(self._laid_out(lines, self._live.columns))
        if bar:
            cut = bar.decode(errors="replace")[: self._live.columns].encode()
            self._live.show(cut.replace(self._label, self._painted), self)

    def finish(self) -> None:
        """Write the unfinished last line."""
        if self._live is None:
            self._write(self._lines.feed(self._text.finish()) + self._lines.finish())
            return
        self._live.show(b"", self)
        self._live.above(self._laid_out(self._bars.finish(), self._live.columns))

    def _write(self, lines: bytes) -> None:
        self.outlet.write(lines.replace(self._label, self._painted))

    def _laid_out(self, lines: bytes, columns: int) -> bytes:
        """Break the launcher's lines between words, and colour its tags; other lines stay as they are."""
        return b"".join(self._one(line, columns) for line in lines.splitlines(keepends=True))

    def _one(self, line: bytes, columns: int) -> bytes:
        own = _OWN.match(line)
        if own is not None:
            text, margin = _without_mark(line.decode(errors="replace").rstrip("\n")), " " * own.end()
            first, *rest = wrapped(text[own.end() :], columns - own.end())
            line = f"\n{margin}".join((text[: own.end()] + first, *rest)).encode() + b"\n"
            tag, colour = own[1], _LEVELS[own[1]]
            line = line.replace(b"[%b]" % tag, b"\x1b[%dm[%b]\x1b[0m" % (colour, tag), 1)
        return line.replace(self._label, self._painted)


def _first_failed(records: Iterable[Path]) -> int | None:
    """Return the node that failed first, according to the records of one launch; None if no record has it.

    Nodes that connected agree on it. Without a roll call, it is the node whose processes ran the shortest.
    """
    failed: list[tuple[float, int]] = []
    for record in records:
        with suppress(OSError, ValueError, KeyError, TypeError):  # another launch may be writing there
            outcome = json.loads(record.read_text(encoding="utf-8"))["outcome"]
            failed.append((float(outcome["duration_s"]), int(outcome["first_failed_node"])))
    return min(failed)[1] if failed else None
