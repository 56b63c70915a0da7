"""Launchers as processes on this machine, with nodes of any kind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Queue
from typing import Any, TypeVar

import pytest

from platform_launch.errors import NodesAbsentError, NodesDisagreeError, TopologyError
from platform_launch.health.finding import Grade, NodeHealth
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome, UnwellNode
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.run.state import StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import AllJoined, RendezvousLost, RunEnded, RunNews, RunTask, Standby
from platform_launch.rendezvous.verdict import RunRefusal
from tests.lab.needs import takes_long
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.launchers import LauncherProcess
from tests.rendezvous.nodes import fingerprint

pytestmark = pytest.mark.long
Kind = TypeVar("Kind", bound=RunNews)


class Launcher:
    """A node's launcher, as a test sees it."""

    def __init__(self, task: RunTask) -> None:
        self.task = task
        self._heard: Queue[RunNews | None] = Queue()
        self.said: list[str] = []
        self.link = LauncherProcess(task, self._heard.put)

    def expect(self, kind: type[Kind]) -> Kind:
        """Wait for a message of a kind; earlier console lines are stored in ``said``."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                message = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {kind.__name__}; said: {self.said}") from None
            if isinstance(message, kind):
                return message
            if isinstance(message, Standby):  # a node without a rank may get one before it says that it waits
                continue
            assert isinstance(message, ConsoleLine), f"{message} instead of {kind.__name__}: {self.said}"
            self.said.append(message.text)

    def hear(self, text: str) -> None:
        """Wait until a text is printed."""
        while not any(text in said for said in self.said):
            self.said.append(self.expect(ConsoleLine).text)


Attend = Callable[..., Launcher]


@pytest.fixture
def attend() -> Iterator[Attend]:
    """Start launchers that connect to each other, and stop them."""
    started: list[Launcher] = []

    def enter(
        node: Fingerprint,
        *,
        timeout_s: float = 120.0,
        secret: str = "",
        node_timeout_s: float = 4.0,
        **more: Any,
    ) -> Launcher:
        task = RunTask(
            node=node,
            master_addr="127.0.0.1",
            master_port=master_port,
            ports=(rendezvous_port,),
            roll_call_timeout_s=timeout_s,
            node_timeout_s=node_timeout_s,
            grace_s=1.0,
            secret=Secret(secret) if secret else None,
            **more,
        )
        started.append(Launcher(task))
        return started[-1]

    with reserved_port() as master_port, reserved_port() as rendezvous_port:
        yield enter
        for launcher in started:
            with suppress(ProcessLookupError):
                os.kill(launcher.link.pid, signal.SIGKILL)
            launcher.link.close()


def test_run_starts_when_the_last_node_has_joined(attend: Attend) -> None:
    first = attend(fingerprint(0, 2))
    time.sleep(1)
    second = attend(fingerprint(1, 2))
    assert first.expect(AllJoined).nnodes == 2
    second.expect(AllJoined)


def test_different_torch_releases_are_refused(attend: Attend) -> None:
    nodes = [attend(fingerprint(0, 2)), attend(fingerprint(1, 2, facts={"torch release": "2.6"}))]
    for node in nodes:
        leave = node.expect(RunRefusal)
        assert leave.exit_code == NodesDisagreeError.exit_code
        assert "torch release: " in leave.reason
        assert "2.6 on node 1" in leave.reason


def test_node_of_another_job_is_rejected_and_the_job_starts(attend: Attend) -> None:
    host = attend(fingerprint(0, 2))
    stranger = attend(fingerprint(1, 2, job_id="job-8", host="elsewhere"))
    leave = stranger.expect(RunRefusal)
    assert leave.exit_code == NodesAbsentError.exit_code
    assert "elsewhere (10.0.0.1) belongs to job 'job-8'" in leave.reason
    guest = attend(fingerprint(1, 2))
    host.expect(AllJoined)
    guest.expect(AllJoined)


def test_rank_beyond_the_number_of_nodes_is_reported(attend: Attend) -> None:
    nodes = [attend(fingerprint(0, 2)), attend(fingerprint(5, 8))]
    for node in nodes:
        leave = node.expect(RunRefusal)
        assert leave.exit_code == TopologyError.exit_code
        assert "gpu-5 (10.0.0.5) is node 5 of 8, but node 0 (gpu-0 (10.0.0.0))" in leave.reason


@takes_long
def test_world_size_that_counts_processes_is_reported_at_the_timeout(attend: Attend) -> None:
    guest = attend(fingerprint(1, 16))
    guest.hear("refuses the connection")  # so that no time of node 0's is spent on its start
    host = attend(fingerprint(0, 16), timeout_s=8.0)
    for node in (host, guest):
        leave = node.expect(RunRefusal)
        assert leave.exit_code == TopologyError.exit_code
        assert "14 of 16 nodes missing: nodes 2-15; never connected" in leave.reason
        assert "WORLD_SIZE=16 looks like the number of processes" in leave.reason
    assert any("looks like the number of processes" in text for text in host.said)


@takes_long
def test_node_that_left_before_the_start_is_absent_with_a_time(attend: Attend) -> None:
    guest = attend(fingerprint(1, 3))
    guest.hear("refuses the connection")
    host = attend(fingerprint(0, 3), timeout_s=12.0)
    host.hear("1 of 3 nodes missing: node 2")
    guest.link.send(StopAll(NodeEnding(EndKind.STOPPED, 1, "gpu-1", 0, stopped_by="SIGTERM")))
    leave = host.expect(RunRefusal)
    assert "2 of 3 nodes missing: node 1, node 2; last heard from node 1 " in leave.reason
    assert leave.reason.endswith("s ago, the others never; gave up after 12 s")


@pytest.mark.parametrize("told", [0, 1])
def test_stop_request_between_attempts_ends_all_nodes(attend: Attend, told: int) -> None:
    nodes = [attend(fingerprint(rank, 3, restarts_used=1)) for rank in range(2)]
    nodes[0].hear("1 of 3 nodes missing: node 2")
    nodes[told].link.send(StopAll(NodeEnding(EndKind.STOPPED, told, "gpu", 143, stopped_by="SIGTERM")))
    assert nodes[1 - told].expect(RunRefusal).exit_code == 143


def test_returning_node_takes_its_own_rank(attend: Attend) -> None:
    """A pod that crashed while the others waited, and was started again."""
    host = attend(fingerprint(0, 3))
    lost = attend(fingerprint(1, 3))
    host.hear("1 of 3 nodes missing: node 2")
    os.kill(lost.link.pid, signal.SIGKILL)
    time.sleep(3)
    again = attend(fingerprint(1, 3, identity="launcher 1, second life"))
    last = attend(fingerprint(2, 3))
    for node in (host, again, last):
        node.expect(AllJoined)


def test_ranks_follow_the_network_at_the_first_start(attend: Attend) -> None:
    nodes = [
        attend(fingerprint(rank, 4, network=(switch,)), by_network=True) for rank, switch in enumerate("abab")
    ]
    met = [node.expect(AllJoined) for node in nodes]
    assert [one.node_rank for one in met] == [0, 2, 1, 3]
    assert all(one.reordered for one in met)
    assert not met[0].warnings


def test_ranks_stay_the_same_at_a_restart(attend: Attend) -> None:
    nodes = [
        attend(fingerprint(rank, 4, network=(switch,), restarts_used=1), by_network=True)
        for rank, switch in enumerate("abab")
    ]
    assert [node.expect(AllJoined).node_rank for node in nodes] == [0, 1, 2, 3]


@takes_long
def test_lost_node_is_replaced_with_its_reordered_rank(attend: Attend) -> None:
    job: dict[str, Any] = {"by_network": True, "spares": 1, "max_restarts": 2}
    nodes = [attend(fingerprint(rank, 4, network=(switch,)), **job) for rank, switch in enumerate("abab")]
    spare = attend(fingerprint(4, 4, network=("b",)), spare=True, **job)
    spare.expect(Standby)
    assert [node.expect(AllJoined).node_rank for node in nodes] == [0, 2, 1, 3]
    os.kill(nodes[1].link.pid, signal.SIGKILL)
    for rank, index in ((0, 0), (1, 2), (3, 3)):
        nodes[index].expect(StopAll)
        stopped = NodeEnding(EndKind.STOPPED, rank, f"gpu-{index}", 143, stopped_by="node 2")
        nodes[index].link.send(TrainingEnded(stopped, None))
    outcome = nodes[0].expect(RunEnded).outcome
    assert (outcome.restart, outcome.replaced) == (True, (2,))


@takes_long
@pytest.mark.parametrize("replacement", ["spare", "came back"])
def test_other_nodes_keep_their_reordered_ranks_after_a_restart(attend: Attend, replacement: str) -> None:
    job: dict[str, Any] = {"by_network": True, "spares": 1, "max_restarts": 2, "replaced": (2,)}
    host = attend(fingerprint(0, 4, network=("a",), restarts_used=1), **job)
    # A node that the platform started again has the rank of before, which another node holds now.
    rank = 4 if replacement == "spare" else 1
    joins = attend(
        fingerprint(rank, 4, network=("b",), identity=replacement), spare=replacement == "spare", **job
    )
    host.hear("2 of 4 nodes missing: node 1, node 3")
    others = {
        rank: attend(fingerprint(rank, 4, network=(switch,), restarts_used=1, stand_in=True), **job)
        for rank, switch in ((1, "a"), (3, "b"))
    }
    for rank, node in {0: host, 2: joins, **others}.items():
        assert node.expect(AllJoined).node_rank == rank


@takes_long
def test_highest_number_of_restarts_counts(attend: Attend) -> None:
    nodes = [attend(fingerprint(0, 2)), attend(fingerprint(1, 2, restarts_used=3))]
    assert [node.expect(AllJoined).restarts_used for node in nodes] == [3, 3]


def test_outcome_of_a_run_is_equal_on_all_nodes(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    failed = NodeEnding(EndKind.FAILED, 1, "gpu-1", 3, Cause("bad_data", ("ValueError: 3",), ("cause: 3",)))
    nodes[1].link.send(StopAll(failed))
    assert nodes[0].expect(StopAll).ending == failed
    stopped = NodeEnding(EndKind.STOPPED, 0, "gpu-0", 143, stopped_by="node 1")
    worn = NodeHealth(Grade.SUSPECT, ("GPU 3: faulty rows",))
    nodes[0].link.send(TrainingEnded(replace(stopped, health=worn), None))
    nodes[1].link.send(TrainingEnded(replace(failed, health=NodeHealth(Grade.HEALTHY)), None))
    for node in nodes:
        outcome = node.expect(RunEnded).outcome
        assert outcome.exit_code == 3
        assert outcome.restart
        assert (outcome.unwell, outcome.well) == ((UnwellNode(0, "gpu-0", worn),), 1)
        assert outcome.ending is not None
        assert replace(outcome.ending, ended_at_s=0.0, health=None) == failed


@takes_long
def test_node_0_may_be_slow_to_request_a_restart(attend: Attend) -> None:
    """On a busy machine, its launcher stops the job slowly; the others had waited for six seconds."""
    nodes = [attend(fingerprint(rank, 2, gpus=0)) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    failed = NodeEnding(EndKind.FAILED, 1, "gpu-1", 137)
    nodes[1].link.send(StopAll(failed))
    nodes[1].link.send(TrainingEnded(failed, None))
    nodes[0].expect(StopAll)
    time.sleep(8.0)
    nodes[0].link.send(TrainingEnded(NodeEnding(EndKind.STOPPED, 0, "gpu-0", 143, stopped_by="node 1"), None))
    assert [node.expect(RunEnded).outcome.restart for node in nodes] == [True, True]


def test_job_stopped_by_a_signal_has_one_exit_code(attend: Attend) -> None:
    """A node that lost its peer reports that before the node that was asked to stop does."""
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    lost = Cause("", ("Connection closed by peer",), ("Connection closed by peer",))
    failed = NodeEnding(EndKind.FAILED, 0, "gpu-0", 1, lost)
    nodes[0].link.send(StopAll(failed))
    nodes[1].expect(StopAll)
    nodes[0].link.send(TrainingEnded(failed, None))
    nodes[1].link.send(
        TrainingEnded(NodeEnding(EndKind.STOPPED, 1, "gpu-1", 143, stopped_by="SIGTERM"), None)
    )
    for node in nodes:
        outcome = node.expect(RunEnded).outcome
        assert (outcome.exit_code, outcome.restart, outcome.first_failed) == (143, False, None)


def test_silent_node_is_the_cause_of_lost_connections(attend: Attend) -> None:
    """All of its processes were killed, and its peer noticed late."""
    nodes = [attend(fingerprint(rank, 2), node_timeout_s=LIMIT_S) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    os.kill(nodes[1].link.pid, signal.SIGSTOP)
    nodes[0].hear("is stopped or stuck")
    lost = Cause("", ("Connection closed by peer",), ("Connection closed by peer",))
    failed = NodeEnding(EndKind.FAILED, 0, "gpu-0", 1, lost)
    nodes[0].link.send(StopAll(failed))
    nodes[0].link.send(TrainingEnded(failed, None))
    ending = nodes[0].expect(RunEnded).outcome.ending
    assert ending is not None
    assert (ending.kind, ending.node_rank) == (EndKind.LAUNCHER_SILENT, 1)


def test_stop_request_to_a_finished_node_0_stops_no_other(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    nodes[0].link.send(TrainingEnded(NodeEnding(EndKind.FINISHED, 0, "gpu-0", 0), None))
    nodes[0].link.close()
    assert nodes[1].expect(RunEnded).outcome == RunOutcome(0, closed=True)


def test_second_launcher_of_a_rank_does_not_end_a_run(attend: Attend) -> None:
    """``RANK=1 start_… --script other.py`` by mistake, while the first one trains."""
    nodes = [attend(fingerprint(rank, 2)) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    second = attend(fingerprint(1, 2, identity="another launcher", host="elsewhere"))
    leave = second.expect(RunRefusal)
    assert leave.exit_code == TopologyError.exit_code
    assert "two nodes have rank 1: gpu-1 (10.0.0.1) and elsewhere (10.0.0.1)" in leave.reason
    for rank, node in enumerate(nodes):
        node.link.send(TrainingEnded(NodeEnding(EndKind.FINISHED, rank, "gpu", 0), None))
    for node in nodes:
        assert node.expect(RunEnded).outcome.ending is None


@takes_long
def test_node_whose_rank_does_not_become_free_leaves_at_the_timeout(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2), node_timeout_s=LIMIT_S) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    os.kill(nodes[1].link.pid, signal.SIGSTOP)  # silent, so that it is open whose rank it is
    late = attend(fingerprint(1, 2, identity="another launcher"), node_timeout_s=LIMIT_S, timeout_s=1.0)
    leave = late.expect(RunRefusal)
    assert leave.exit_code == NodesAbsentError.exit_code
    assert "continues without this node, which tried to join as node 1 for 1 s" in leave.reason


@takes_long
def test_nodes_with_the_secret_start_and_others_are_named(attend: Attend) -> None:
    secret = "a secret of thirty-two characters"
    host = attend(fingerprint(0, 2), secret=secret)
    without = attend(fingerprint(1, 2, host="gn7"))
    other = attend(fingerprint(1, 2, host="gn7"), secret="another secret, as long")
    guest = attend(fingerprint(1, 2), secret=secret)
    host.expect(AllJoined)
    guest.expect(AllJoined)
    leave = without.expect(RunRefusal)
    assert leave.exit_code == NodesDisagreeError.exit_code
    assert "node 1 (gn7 (10.0.0.1)) has no PLATFORM_LAUNCH_SECRET, node 0" in leave.reason
    assert "has another PLATFORM_LAUNCH_SECRET" in other.expect(RunRefusal).reason


def test_killed_launcher_ends_the_run_within_seconds_and_is_named(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2), node_timeout_s=LIMIT_S) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    nodes[1].link.kill()
    ending = nodes[0].expect(StopAll).ending
    assert (ending.kind, ending.node_rank) == (EndKind.LAUNCHER_KILLED, 1)


def test_killed_launcher_of_node_0_is_reported_by_all(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 2), node_timeout_s=LIMIT_S) for rank in range(2)]
    for node in nodes:
        node.expect(AllJoined)
    nodes[0].link.kill()
    ending = nodes[1].expect(RendezvousLost).ending
    assert (ending.kind, ending.node_rank) == (EndKind.COORDINATOR_GONE, 0)


@pytest.mark.parametrize("secrets", [("a secret of the whole job", ""), ("", "a secret of the whole job")])
def test_different_secrets_end_both_sides_within_seconds(attend: Attend, secrets: tuple[str, str]) -> None:
    nodes = [attend(fingerprint(rank, 2), secret=secret) for rank, secret in enumerate(secrets)]
    for node in nodes:
        refusal = node.expect(RunRefusal)
        assert refusal.exit_code == NodesDisagreeError.exit_code
        assert "PLATFORM_LAUNCH_SECRET" in refusal.reason
