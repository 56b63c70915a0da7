"""Real hangs of a real job on gloo: the suspect is named on every node, or rightly nobody.

Read from the event files, as any program would. One launch goes through all that can be ended again, since
to start one costs more than to hang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from platform_launch import events
from platform_launch.errors import HangError
from platform_launch.events import Event
from platform_launch.observe import processes
from tests.lab.disk import requires_mount
from tests.lab.needs import takes_long
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import LIMIT_S, at_once, until

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "tests" / "lab" / "hanging.py"
ENDED = ("training-finished", "training-stopped", "training-followed", "training-killed", "training-failed")
FLAGS = ["--launcher", "torchrun", "--no-doctor", "--hang-after", "6", "--script", str(TRAINING)]

# Where each node has one process, torchrun would only be one more that imports torch.
WITHOUT_TORCHRUN = ("--launcher", "python")

pytestmark = pytest.mark.train


class Lab:
    """A launch of some nodes on this machine, and its output."""

    def __init__(
        self, folder: Path, faults: str, flags: Sequence[str], arguments: Sequence[str] = ()
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.logs = folder / "logs"
        for name in ("release", "shard"):
            os.mkfifo(folder / name)
        self.output = (folder / "output").open("wb")
        command = [sys.executable, "-m", "platform_launch", "simulate", *FLAGS]
        command += ["--nproc-per-node", "1", "--log-dir", str(self.logs), *flags]
        self.process = subprocess.Popen(
            [*command, "--", faults, "--folder", str(folder), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
            cwd=folder,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def events(self, *names: str) -> dict[int, list[Event]]:
        """Return the events of these names, by node."""
        return said_in(self.logs, *names)

    def so_far(self) -> str:
        """Return its output."""
        return Path(self.output.name).read_text()

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(LIMIT_S)
            finally:
                with_group_killed(self.process.pid)
        self.output.close()


def with_group_killed(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def said_in(logs: Path, *names: str) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    for path in sorted(logs.glob(f"*{events.SUFFIX}")):
        for said in events.read(path) or []:
            if said.id in names and said.node_rank is not None:
                found.setdefault(said.node_rank, []).append(said)
    return found


@contextmanager
def lab(folder: Path, faults: str, flags: Sequence[str] = (), arguments: Sequence[str] = ()) -> Iterator[Lab]:
    started = Lab(folder, faults, flags, arguments)
    try:
        yield started
    finally:
        started.close()


def finding_of(said: Event) -> Mapping[str, Any]:
    finding = said.fields["finding"]
    assert isinstance(finding, dict)
    return finding


@dataclass(frozen=True)
class Fault:
    """What rank 1 does, what must be reported about it, and how it ends."""

    name: str
    doing: str
    where: str
    ended_by: str = "SIGUSR1"
    kind: str = "hang"


FAULTS = (
    Fault("sleep", "asleep", "in sleep"),
    Fault("loop", "loop", "in loop", kind="busy"),
    Fault("gil", "gil", "in hold_gil", ended_by="release"),
    Fault("stop", "stopped", "", ended_by="SIGCONT"),
    Fault("dead-lock", "asleep", "in dead_lock"),
    Fault("data-stop", "data-worker", "is suspended", ended_by="SIGCONT"),
    Fault("data-fifo", "data-worker", "in read_fifo", ended_by="shard"),
    Fault("retry", "asleep", "in retry"),
    Fault("lock", "asleep", "cache.lock (held by process "),
    Fault("no-answer", "request", "(peer 127.0.0.1:"),
    Fault("build", "child", "computes (", kind="busy"),
    Fault("move-data", "busy", "it moves ", kind="busy"),
    Fault("validate", "busy", "in validate", kind="busy"),
    Fault("compile", "busy", "lowering.py", kind="busy"),
)


# One of each way in which a rank keeps the others waiting.
MAIN = tuple(fault for fault in FAULTS if fault.name in ("sleep", "loop", "gil", "stop", "data-fifo", "lock"))


@takes_long
@pytest.mark.parametrize(
    "faults", [MAIN, pytest.param(FAULTS, marks=pytest.mark.nightly)], ids=["main", "all"]
)
def test_suspect_of_each_hang_and_the_continuation_are_reported_on_every_node(
    faults: tuple[Fault, ...], tmp_path: Path
) -> None:
    names = ",".join(fault.name for fault in faults)
    with lab(tmp_path, names, ["--nodes", "3", *WITHOUT_TORCHRUN]) as launch:
        for number, fault in enumerate(faults):
            said = until(partial(of_each_node, launch, number), launch.so_far)
            for one in said:
                finding = finding_of(one)
                assert one.id == ("no-progress" if fault.kind == "hang" else "slow-but-working"), fault
                assert (finding["kind"], finding["suspect_ranks"]) == (fault.kind, [1]), fault
                (culprit,) = finding["culprits"]
                assert (culprit["doing"], culprit["node_rank"]) == (fault.doing, 1), fault
                assert fault.where in culprit["words"], fault
            if fault.name == "sleep":
                assert_inspected(3)
            end(fault, culprit["pid"], tmp_path)
        record = json.loads(min(launch.logs.glob("*.hang1.json")).read_text())
        assert len(record["hang"]["line_sentences"]) == len(record["hang"]["lines"])
        assert [len(node["ranks"]) for node in record["nodes"]] == [1, 1, 1]
        assert launch.events("hang-ends-training", "not-observed") == {}


def of_each_node(launch: Lab, number: int) -> list[Event]:
    """Return each node's first report after it continued so many times; nothing until all have reported."""
    found = []
    for node in launch.events("no-progress", "slow-but-working", "progress-again").values():
        ends = [at for at, said in enumerate(node) if said.id == "progress-again"]
        begin = ends[number - 1] + 1 if 0 < number <= len(ends) else 0 if not number else len(node)
        found += node[begin : begin + 1]
    return found if len(found) == 3 else []


def end(fault: Fault, pid: int, folder: Path) -> None:
    if not fault.ended_by.startswith("SIG"):
        (folder / fault.ended_by).write_bytes(b".")
        return
    for child in [*processes.children(pid), pid] if fault.ended_by == "SIGCONT" else [pid]:
        os.kill(child, signal.Signals[fault.ended_by])


def assert_inspected(nodes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "platform_launch", "inspect", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    found = json.loads(done.stdout)
    (answer,) = [
        one
        for one in (found if isinstance(found, list) else [found])
        if "hanging.py" in " ".join(one["lines"]) and "in sleep" in " ".join(one["lines"])
    ][:1]
    assert len(answer["nodes"]) == nodes
    assert len(answer["memory_lines"]) == nodes


@pytest.mark.nightly
def test_ranks_in_different_operations_are_named_and_restarted_on_request(
    tmp_path: Path,
) -> None:
    at_once(
        partial(
            _names_both, tmp_path / "nodes", "other-collective", 2, ("restart", "--max-restarts", "1"), 2
        ),
        partial(_names_both, tmp_path / "node", "skip", 1, ("stop",), 1),
    )


def _names_both(folder: Path, fault: str, nodes: int, on_hang: Sequence[str], starts: int) -> None:
    flags = ["--nodes", str(nodes), "--nproc-per-node", str(2 // nodes)]
    flags += WITHOUT_TORCHRUN if nodes == 2 else ()
    with lab(folder, fault, [*flags, "--on-hang", *on_hang]) as launch:
        assert launch.process.wait(LIMIT_S) == HangError.exit_code, launch.so_far()
        said = launch.events("no-progress")
        assert sorted(said) == list(range(nodes))
        assert [finding_of(one)["suspect_ranks"] for one in said[0]] == [[0, 1]] * starts
        assert len(launch.events("hang-ends-training")[0]) == starts
        assert len(list(launch.logs.glob("*.hang?.json"))) == starts
        costs = [one.fields["hang_s"] for said in launch.events("run-cost").values() for one in said]
        assert len(costs) == nodes
        assert all(costs)
        ended = [one.fields["exit_code"] for on in launch.events(*ENDED).values() for one in on]
        assert ended == [HangError.exit_code] * nodes


@pytest.mark.nightly
def test_rank_that_exited_early_is_named_if_others_fail(tmp_path: Path) -> None:
    with lab(tmp_path, "leave", ["--nodes", "2"]) as launch:
        assert launch.process.wait(LIMIT_S) != 0
        assert [said.fields["ranks"] for said in launch.events("ranks-left")[1]] == ["1"]
        for said in launch.events("node-left-early").values():
            assert [one.fields["node"] for one in said] == [1]
        assert sorted(launch.events("node-left-early")) == [0, 1]


@takes_long
def test_stuck_jax_process_is_named_by_its_stack_and_the_job_stopped(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    script = TRAINING.with_name("hanging_jax.py")
    with lab(tmp_path, "", ["--launcher", "jax", "--script", str(script), "--on-hang", "stop"]) as launch:
        assert launch.process.wait(LIMIT_S) == HangError.exit_code, launch.so_far()
        for node in launch.events("no-progress").values():
            (culprit,) = finding_of(node[0])["culprits"]
            assert (culprit["rank"], culprit["doing"]) == (1, "asleep")
            assert "in fall_asleep" in culprit["words"]


@takes_long
def test_job_with_progress_is_never_reported_as_a_hang(tmp_path: Path) -> None:
    flags = ["--hang-after", "12", "--on-hang", "stop", *WITHOUT_TORCHRUN]
    with lab(tmp_path, "none", flags, ["--steps", "300"]) as launch:
        assert launch.process.wait(LIMIT_S) == 0, launch.so_far()
        assert launch.events("no-progress", "not-observed") == {}


@pytest.mark.nightly
def test_rank_with_slow_data_is_named_and_nobody_in_a_healthy_job(
    tmp_path: Path,
) -> None:
    named = threading.Event()
    at_once(
        partial(_names_the_slow, tmp_path / "slow", named), partial(_is_silent, tmp_path / "healthy", named)
    )


SLOW_FLAGS = ("--nodes", "2", "--hang-after", "20", *WITHOUT_TORCHRUN)


def _names_the_slow(folder: Path, named: threading.Event) -> None:
    try:
        with lab(folder, "none", SLOW_FLAGS, ["--slow"]) as launch:
            said = until(lambda: launch.events("slow-rank").get(1, []), launch.so_far)
            assert said[0].fields["ranks"] == "1"
            finding = finding_of(said[0])
            assert "in slow_read" in str(finding["place"])
            assert finding["node_rank"] == 1
    finally:
        named.set()


def _is_silent(folder: Path, named: threading.Event) -> None:
    """Run for as long as it takes to name the slow one."""
    with lab(folder, "none", SLOW_FLAGS) as launch:
        assert named.wait(LIMIT_S)
        assert launch.process.poll() is None, launch.so_far()
        assert launch.events("slow-rank", "slower-than-before", "no-progress", "not-observed") == {}


@pytest.mark.nightly
@requires_netns
def test_lost_packets_between_two_nodes_are_reported_on_both(tmp_path: Path) -> None:
    """The job uses its own network, and only that one breaks: the rendezvous reports it."""
    port = 29411
    with hosts(2) as nodes, _data_network(nodes) as lose_packets:
        running = []
        for rank, node in enumerate(nodes):
            variables = {
                "WORLD_SIZE": "2",
                "RANK": str(rank),
                "MASTER_ADDR": nodes[0].address,
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "data0",
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-m", "platform_launch", "run", *FLAGS, *WITHOUT_TORCHRUN]
            command += [
                "--nproc-per-node",
                "1",
                "--on-hang",
                "stop",
                "--log-dir",
                str(tmp_path),
                "--",
                "none",
            ]
            with (tmp_path / f"output{rank}").open("wb") as output:
                running.append(node.popen(command, env=variables, stdout=output))
        try:
            until(lambda: "10.214.0.1" in nodes[1].run(["ss", "-Htn", "state", "established"]).stdout)
            lose_packets()
            for process in running:
                assert process.wait(LIMIT_S) == HangError.exit_code, (tmp_path / "output0").read_text()
        finally:
            for process in running:
                process.kill()
                process.wait()
    said = said_in(tmp_path, "no-progress")
    assert sorted(said) == [0, 1]
    for events_of_node in said.values():
        finding = finding_of(events_of_node[0])
        assert {culprit["doing"] for culprit in finding["culprits"]} == {"network"}
        assert "10.214.0." in finding["culprits"][0]["words"]


@contextmanager
def _data_network(nodes: Sequence[Host]) -> Iterator[Callable[[], None]]:
    """Connect two hosts by a second link; yield a function that drops all its packets silently."""
    names = [node.namespace for node in nodes]
    _ip(f"link add data0 netns {names[0]} type veth peer name data0 netns {names[1]}")
    for number, name in enumerate(names, 1):
        _ip(f"-n {name} addr add 10.214.0.{number}/24 dev data0")
        _ip(f"-n {name} link set data0 up")

    def lose_packets() -> None:
        for number, name in enumerate(names, 1):
            peer = f"10.214.0.{3 - number} lladdr 02:00:00:00:00:99"
            _ip(f"-n {name} neigh replace {peer} dev data0 nud permanent")

    yield lose_packets


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


@pytest.mark.nightly
@requires_mount
def test_write_to_an_unresponsive_file_system_is_named(tmp_path: Path) -> None:
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    made = subprocess.run(["mkfs.ext4", "-q", image], capture_output=True, check=False)
    loop = subprocess.run(
        ["mount", "-o", "loop", image, mounted], capture_output=True, text=True, check=False
    )
    if made.returncode or loop.returncode:
        pytest.skip(f"no loop device can be mounted here: {loop.stderr.strip()}")
    try:
        subprocess.run(["fsfreeze", "--freeze", mounted], check=True)
        try:
            with lab(tmp_path, "blocked-write", WITHOUT_TORCHRUN, ["--folder", str(mounted)]) as launch:
                said = until(lambda: launch.events("no-progress").get(1, []))
                (culprit,) = finding_of(said[0])["culprits"]
                assert (culprit["rank"], culprit["doing"]) == (1, "kernel")
                subprocess.run(["fsfreeze", "--unfreeze", mounted], check=True)
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", mounted], check=False, capture_output=True)
    finally:
        # The writer ends a moment after its launch: it was asleep in the kernel.
        until(lambda: subprocess.run(["umount", mounted], check=False, capture_output=True).returncode == 0)
