"""Real helper processes on this machine, with nodes of any kind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from typing import TypeVar

import pytest

from platform_launch.errors import InstallationError, NodesAbsentError, NodesDisagreeError, TopologyError
from platform_launch.health.finding import Grade, NodeHealth
from platform_launch.launch.link import HelperLink
from platform_launch.rendezvous.authentication import Seal, Secret
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome, UnwellNode
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import ConsoleLine, Message
from platform_launch.rendezvous.protocol import Announcement
from platform_launch.rendezvous.run.launcher import (
    AllHere,
    RunSoFar,
    RunTask,
    Settled,
)
from platform_launch.rendezvous.run.state import PURPOSE, RunPhase, RunState, StopAll, TrainingEnded
from platform_launch.rendezvous.store import Store
from platform_launch.rendezvous.verdict import RunRefusal
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.nodes import fingerprint

pytestmark = pytest.mark.long
Kind = TypeVar("Kind", bound=Message)


class Launcher:
    """A node's launcher, as far as its helper can tell."""

    def __init__(self, task: RunTask, environment: dict[str, str]) -> None:
        self.task = task
        self._heard: Queue[Message | None] = Queue()
        self.said: list[str] = []
        self.so_far: RunSoFar | None = None
        self.link = HelperLink(task, environment, self._heard.put)

    def expect(self, kind: type[Kind]) -> Kind:
        """Wait for a message of a kind; what is said before is kept in ``said``."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                message = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {kind.__name__}; said: {self.said}") from None
            if isinstance(message, RunSoFar):
                self.so_far = message
            if isinstance(message, kind):
                return message
            if isinstance(message, RunSoFar):
                continue
            assert isinstance(message, ConsoleLine), f"{message} instead of {kind.__name__}: {self.said}"
            self.said.append(message.text)

    def is_lost(self) -> bool:
        """Tell whether the next that is heard is the end of the helper."""
        return self._heard.get(timeout=LIMIT_S) is None

    def hear(self, text: str) -> None:
        """Wait until something is said."""
        while not any(text in said for said in self.said):
            self.said.append(self.expect(ConsoleLine).text)


Attend = Callable[..., Launcher]


@pytest.fixture
def attend(tmp_path: Path) -> Iterator[Attend]:
    """Start helpers that meet each other, and end them."""
    started: list[Launcher] = []

    def enter(
        node: Fingerprint,
        *,
        timeout_s: float = 120.0,
        environment: dict[str, str] | None = None,
        secret: str = "",
        node_timeout_s: float = 4.0,
        so_far: RunSoFar | None = None,
    ) -> Launcher:
        task = RunTask(
            node=node,
            master_addr="127.0.0.1",
            master_port=master_port,
            rendezvous_port=rendezvous_port,
            roll_call_timeout_s=timeout_s,
            node_timeout_s=node_timeout_s,
            grace_s=1.0,
            log_path=str(tmp_path / f"{node.identity}.log"),
            secret=secret,
            rejoining=so_far is not None,
            so_far=so_far,
        )
        started.append(Launcher(task, {**os.environ, **(environment or {})}))
        return started[-1]

    with reserved_port() as master_port, reserved_port() as rendezvous_port:
        yield enter
        for launcher in started:
            with suppress(ProcessLookupError):
                os.kill(launcher.link.pid, signal.SIGKILL)
            launcher.link.close()


def test_the_run_starts_when_the_last_node_has_come(attend: Attend) -> None:
    first = attend(fingerprint(0, 2))
    time.sleep(1)
    second = attend(fingerprint(1, 2))
    assert first.expect(AllHere).nnodes == 2
    second.expect(AllHere)


def test_different_torch_releases_are_found_by_importing_torch(attend: Attend, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch\n\ntorch.version.__version__ = '2.6.0+cu124'\n")
    nodes = [
        attend(fingerprint(0, 2)),
        attend(fingerprint(1, 2), environment={"PYTHONPATH": str(tmp_path)}),
    ]
    for node in nodes:
        leave = node.expect(RunRefusal)
        assert leave.exit_code == NodesDisagreeError.exit_code
        assert "torch release: " in leave.reason
        assert "2.6 on node 1" in leave.reason


def test_a_stranger_is_turned_away_and_the_job_starts_all_the_same(attend: Attend) -> None:
    host = attend(fingerprint(0, 2))
    stranger = attend(fingerprint(1, 2, job_id="job-8", host="elsewhere"))
    leave = stranger.expect(RunRefusal)
    assert leave.exit_code == NodesAbsentError.exit_code
    assert "elsewhere (10.0.0.1) belongs to job 'job-8'" in leave.reason
    guest = attend(fingerprint(1, 2))
    host.expect(AllHere)
    guest.expect(AllHere)
    assert any("turned away: elsewhere (10.0.0.1) belongs to job" in text for text in host.said)


def test_a_rank_beyond_the_number_of_nodes_is_named(attend: Attend) -> None:
    nodes = [attend(fingerprint(0, 2)), attend(fingerprint(5, 8))]
    for node in nodes:
        leave = node.expect(RunRefusal)
        assert leave.exit_code == TopologyError.exit_code
        assert "gpu-5 (10.0.0.5) says it is node 5 of 8, but node 0 (gpu-0 (10.0.0.0))" in leave.reason


def test_a_world_size_that_counts_processes_is_named_when_time_is_up(attend: Attend) -> None:
    guest = attend(fingerprint(1, 16))
    guest.hear("refuses the connection")  # so that no time of node 0's is spent on its start
    host = attend(fingerprint(0, 16), timeout_s=8.0)
    for node in (host, guest):
        leave = node.expect(RunRefusal)
        assert leave.exit_code == TopologyError.exit_code
        assert "14 of 16 absent: nodes 2-15; never heard from" in leave.reason
        assert "WORLD_SIZE=16 looks like the number of processes" in leave.reason
    assert any("looks like the number of processes" in text for text in host.said)


def test_a_node_that_left_before_the_start_is_absent_with_a_date(attend: Attend) -> None:
    guest = attend(fingerprint(1, 3))
    guest.hear("refuses the connection")
    host = attend(fingerprint(0, 3), timeout_s=12.0)
    host.hear("1 of 3 absent: node 2")
    guest.link.send(StopAll(NodeEnding(EndKind.STOPPED, 1, "gpu-1", 0, stopped_by="SIGTERM")))
    leave = host.expect(RunRefusal)
    assert "2 of 3 absent: node 1, node 2; last heard from node 1 " in leave.reason
    assert leave.reason.endswith("s ago, the others never, after 12 s")


@pytest.mark.parametrize("told", [0, 1])
def test_a_node_that_is_told_to_end_between_two_starts_ends_all(attend: Attend, told: int) -> None:
    nodes = [attend(fingerprint(rank, 3, restarts_used=1)) for rank in range(2)]
    nodes[0].hear("1 of 3 absent: node 2")
    nodes[told].link.send(StopAll(NodeEnding(EndKind.STOPPED, told, "gpu", 143, stopped_by="SIGTERM")))
    assert nodes[1 - told].expect(RunRefusal).exit_code == 143


def test_a_node_that_comes_back_takes_its_own_place(attend: Attend) -> None:
    """A pod that crashed while the others waited, and was started again."""
    host = attend(fingerprint(0, 3))
    lost = attend(fingerprint(1, 3))
    host.hear("1 of 3 absent: node 2")
    os.kill(lost.link.pid, signal.SIGKILL)
    time.sleep(3)
    again = attend(fingerprint(1, 3, identity="launcher 1, second life"))
    last = attend(fingerprint(2, 3))
    for node in (host, again, last):
        node.expect(AllHere)


def test_of_several_restarts_the_highest_number_counts(attend: Attend) -> None:
    nodes = [attend(fingerprint(0, 2)), attend(fingerprint(1, 2, restarts_used=3))]
    assert [node.expect(AllHere).restarts_used for node in nodes] == [3, 3]


def test_how_a_run_ended_is_one_value_from_the_node_to_all(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    failed = NodeEnding(EndKind.FAILED, 1, "gpu-1", 3, Cause("bad_data", ("ValueError: 3",), ("cause: 3",)))
    nodes[1].link.send(StopAll(failed))
    assert nodes[0].expect(StopAll).ending == failed
    stopped = NodeEnding(EndKind.STOPPED, 0, "gpu-0", 143, stopped_by="node 1")
    worn = NodeHealth(Grade.SUSPECT, ("GPU 3: faulty rows",))
    nodes[0].link.send(TrainingEnded(replace(stopped, health=worn), None))
    nodes[1].link.send(TrainingEnded(replace(failed, health=NodeHealth(Grade.HEALTHY)), None))
    for node in nodes:
        outcome = node.expect(Settled).outcome
        assert outcome.exit_code == 3
        assert outcome.restart
        assert (outcome.unwell, outcome.well) == ((UnwellNode(0, "gpu-0", worn),), 1)
        assert outcome.ending is not None
        assert replace(outcome.ending, ended_at_s=0.0, health=None) == failed


def test_node_0_may_take_long_to_say_that_it_wants_another_start(attend: Attend) -> None:
    """On a busy machine its launcher ends a training slowly; the others waited for six seconds, and ended."""
    nodes = [attend(fingerprint(rank, 2, gpus=0)) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    failed = NodeEnding(EndKind.FAILED, 1, "gpu-1", 137)
    nodes[1].link.send(StopAll(failed))
    nodes[1].link.send(TrainingEnded(failed, None))
    nodes[0].expect(StopAll)
    time.sleep(8.0)
    nodes[0].link.send(TrainingEnded(NodeEnding(EndKind.STOPPED, 0, "gpu-0", 143, stopped_by="node 1"), None))
    assert [node.expect(Settled).outcome.restart for node in nodes] == [True, True]


def test_a_job_that_a_signal_ends_has_one_code_whoever_is_quicker_to_speak(attend: Attend) -> None:
    """A node that lost its partner says so before the one that was told to end does."""
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    lost = Cause("", ("Connection closed by peer",), ("Connection closed by peer",))
    failed = NodeEnding(EndKind.FAILED, 0, "gpu-0", 1, lost)
    nodes[0].link.send(StopAll(failed))
    nodes[1].expect(StopAll)
    nodes[0].link.send(TrainingEnded(failed, None))
    nodes[1].link.send(
        TrainingEnded(NodeEnding(EndKind.STOPPED, 1, "gpu-1", 143, stopped_by="SIGTERM"), None)
    )
    for node in nodes:
        outcome = node.expect(Settled).outcome
        assert (outcome.exit_code, outcome.restart, outcome.first_failed) == (143, False, None)


def test_a_node_that_was_silent_for_long_is_whom_the_others_lost(attend: Attend) -> None:
    """All of its processes were killed, and its partner noticed late."""
    nodes = [attend(fingerprint(rank, 2), node_timeout_s=LIMIT_S) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    os.kill(nodes[1].link.pid, signal.SIGKILL)
    nodes[0].hear("has been silent for")
    lost = Cause("", ("Connection closed by peer",), ("Connection closed by peer",))
    failed = NodeEnding(EndKind.FAILED, 0, "gpu-0", 1, lost)
    nodes[0].link.send(StopAll(failed))
    nodes[0].link.send(TrainingEnded(failed, None))
    ending = nodes[0].expect(Settled).outcome.ending
    assert ending is not None
    assert (ending.kind, ending.node_rank) == (EndKind.VANISHED, 1)


def test_a_node_0_that_finished_and_is_told_to_end_takes_nobody_with_it(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    nodes[0].link.send(TrainingEnded(NodeEnding(EndKind.FINISHED, 0, "gpu-0", 0), None))
    nodes[0].link.close()
    assert nodes[1].expect(Settled).outcome == RunOutcome(0, closed=True)


def test_a_second_launcher_of_a_rank_does_not_end_a_run(attend: Attend) -> None:
    """``RANK=1 start_… --script other.py`` by mistake, while the first one trains."""
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    second = attend(fingerprint(1, 2, identity="another launcher", host="elsewhere"))
    leave = second.expect(RunRefusal)
    assert leave.exit_code == TopologyError.exit_code
    assert "two nodes say they are node 1: gpu-1 (10.0.0.1) and elsewhere (10.0.0.1)" in leave.reason
    for rank, node in enumerate(nodes):
        node.link.send(TrainingEnded(NodeEnding(EndKind.FINISHED, rank, "gpu", 0), None))
    for node in nodes:
        assert node.expect(Settled).outcome.ending is None


def test_the_helper_of_node_0_is_lost_and_another_goes_on_in_its_place(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2), node_timeout_s=LIMIT_S) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    while not nodes[0].so_far:
        nodes[0].expect(RunSoFar)
    failed = NodeEnding(EndKind.FAILED, 1, "gpu-1", 3)
    os.kill(nodes[0].link.pid, signal.SIGKILL)
    nodes[1].link.send(StopAll(failed))
    nodes[0] = attend(fingerprint(0, 2), node_timeout_s=LIMIT_S, so_far=nodes[0].so_far)
    nodes[0].expect(AllHere)
    assert nodes[0].expect(StopAll).ending == failed
    nodes[0].link.send(TrainingEnded(NodeEnding(EndKind.STOPPED, 0, "gpu-0", 143, stopped_by="node 1"), None))
    nodes[1].link.send(TrainingEnded(failed, None))
    for node in nodes:
        assert node.expect(Settled).outcome.exit_code == 3


def test_who_gets_no_place_in_a_run_that_goes_on_leaves_when_its_time_is_up(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2), node_timeout_s=LIMIT_S) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    os.kill(nodes[1].link.pid, signal.SIGSTOP)  # silent, so that it is open whose rank it is
    late = attend(fingerprint(1, 2, identity="another launcher"), node_timeout_s=LIMIT_S, timeout_s=1.0)
    leave = late.expect(RunRefusal)
    assert leave.exit_code == NodesAbsentError.exit_code
    assert "goes on without this node, which came as node 1 and got no place in 1 s" in leave.reason


def test_nodes_that_share_a_secret_start_and_one_without_it_is_named(attend: Attend) -> None:
    secret = "a secret of thirty-two characters"
    host = attend(fingerprint(0, 2), secret=secret)
    without = attend(fingerprint(1, 2, host="gn7"))
    leave = without.expect(RunRefusal)
    assert leave.exit_code == NodesDisagreeError.exit_code
    assert "node 1 (gn7 (10.0.0.1)) has no PLATFORM_LAUNCH_SECRET, node 0" in leave.reason
    other = attend(fingerprint(1, 2, host="gn7"), secret="another secret, as long")
    assert "has another PLATFORM_LAUNCH_SECRET" in other.expect(RunRefusal).reason
    guest = attend(fingerprint(1, 2), secret=secret)
    host.expect(AllHere)
    guest.expect(AllHere)
    assert "turned away: node 1 (gn7 (10.0.0.1)) has no PLATFORM_LAUNCH_SECRET, node 0" in "\n".join(
        host.said
    )


def test_a_forged_end_does_not_end_a_run_with_a_secret(attend: Attend) -> None:
    secret = "a secret of thirty-two characters"
    nodes = [attend(fingerprint(rank, 2), secret=secret) for rank in range(2)]
    for node in nodes:
        node.expect(AllHere)
    stranger = Store.connect("127.0.0.1", nodes[0].task.rendezvous_port, limit_s=LIMIT_S)
    announcement = Seal(None, "", "").open(
        "announcement", stranger.read(["announcement"])[0] or b"", Announcement
    )
    seal = Seal(Secret("a secret that was guessed"), PURPOSE.name, announcement.nonce)
    forged = StopAll(NodeEnding(EndKind.FAILED, 1, "gpu-1", 1))
    state = RunState(RunPhase.ENDED, 2, outcome=RunOutcome(75))
    for _ in range(20):
        for slot in range(2):
            key = f"value/StopAll/{slot}"
            stranger.write(key, seal.close(key, forged))
        stranger.write("state", seal.close("state", state))
        time.sleep(0.1)
    for rank, node in enumerate(nodes):
        node.link.send(TrainingEnded(NodeEnding(EndKind.FINISHED, rank, "gpu", 0), None))
    for node in nodes:
        assert node.expect(Settled).outcome.ending is None


@pytest.mark.parametrize("broken", ["absent", "broken"])
def test_without_a_torch_that_works_one_line_says_so(
    attend: Attend, tmp_path: Path, broken: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "raise ImportError('libcudart.so.12: cannot open shared object file')"
    if broken == "absent":
        text = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(text)
    node = attend(fingerprint(0, 2), environment={"PYTHONPATH": str(tmp_path)})
    leave = node.expect(RunRefusal)
    assert leave.exit_code == InstallationError.exit_code
    assert leave.reason.startswith("the rendezvous needs torch in this interpreter, ")
    assert "--no-roll-call" in leave.hint
    assert "Traceback" not in capfd.readouterr().err


def test_what_the_python_of_an_image_prints_at_its_start_is_no_message(
    attend: Attend, tmp_path: Path
) -> None:
    greeting = "print('[INFO] welcome')\nprint('loading modules ... ', end='', flush=True)\n"
    (tmp_path / "sitecustomize.py").write_text(greeting)
    for node in [
        attend(fingerprint(rank, 2), environment={"PYTHONPATH": str(tmp_path)}) for rank in range(2)
    ]:
        node.expect(AllHere)


def test_a_helper_that_says_what_nobody_can_read_is_ended_and_named(
    attend: Attend, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = """
import os, threading, time
outlet = os.dup(1)
def forever():
    while True:
        os.write(outlet, b"noise\\n")
        time.sleep(0.05)
threading.Thread(target=forever, daemon=True).start()
"""
    (tmp_path / "sitecustomize.py").write_text(noise)
    node = attend(fingerprint(0, 2), environment={"PYTHONPATH": str(tmp_path)})
    node.hear("the rendezvous of this node failed: InvalidMessageError: expected a Message, found b'noise'")
    assert node.is_lost()
    assert "Traceback" not in capfd.readouterr().err


def test_a_fault_of_the_helper_is_one_line(
    attend: Attend, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = "import torch.distributed\n\ntorch.distributed.TCPStore = 'not callable'\n"
    (tmp_path / "sitecustomize.py").write_text(broken)
    node = attend(fingerprint(0, 2), environment={"PYTHONPATH": str(tmp_path)})
    node.hear("the rendezvous of this node failed: TypeError: 'str' object is not callable (store.py:")
    assert "Traceback" not in capfd.readouterr().err
