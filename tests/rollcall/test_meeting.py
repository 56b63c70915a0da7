"""Real meeting processes on this machine, with nodes of any kind."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import TypeVar

import pytest

from platform_launch.errors import NodesAbsentError, NodesDisagreeError, TopologyError
from platform_launch.node.link import Link
from platform_launch.rollcall import lines
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.lines import Go, Invitation, Leave, Message, Say
from tests.rollcall.nodes import fingerprint

Kind = TypeVar("Kind", bound=Message)

LIMIT_S = 30.0


class Attendee:
    """A node's launcher, as far as its meeting process can tell."""

    def __init__(self, invitation: Invitation, environment: dict[str, str]) -> None:
        self._heard: Queue[Message | None] = Queue()
        self.said: list[str] = []
        self.link = Link(invitation, environment, self._heard.put)

    def expect(self, kind: type[Kind]) -> Kind:
        """Wait for a message of a kind; what is said before is kept in ``said``."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                message = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {kind.__name__}; said: {self.said}") from None
            if isinstance(message, kind):
                return message
            assert isinstance(message, Say), f"{message} instead of {kind.__name__}"
            self.said.append(message.text)

    def hear(self, text: str) -> None:
        """Wait until something is said."""
        while not any(text in said for said in self.said):
            self.said.append(self.expect(Say).text)


Attend = Callable[..., Attendee]


@pytest.fixture
def attend(tmp_path: Path) -> Iterator[Attend]:
    """Start meeting processes that meet each other, and end them."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    started: list[Attendee] = []

    def enter(
        node: Fingerprint, *, timeout_s: float = 25.0, environment: dict[str, str] | None = None
    ) -> Attendee:
        invitation = Invitation(
            node.to_json(), "127.0.0.1", *ports, timeout_s, 4.0, 1.0, str(tmp_path / f"{node.identity}.log")
        )
        started.append(Attendee(invitation, {**os.environ, **(environment or {})}))
        return started[-1]

    yield enter
    for attendee in started:
        with suppress(ProcessLookupError):
            os.kill(attendee.link.pid, signal.SIGKILL)
        attendee.link.close()


def test_a_complete_meeting_starts_within_two_seconds_of_the_last_arrival(attend: Attend) -> None:
    first = attend(fingerprint(0, 2))
    time.sleep(1)
    second = attend(fingerprint(1, 2))
    began = time.monotonic()
    assert first.expect(Go).text == "all 2 nodes are here"
    second.expect(Go)
    assert time.monotonic() - began < 2 + 13  # the second imports torch first, on a busy machine


def test_different_torch_releases_are_found_by_importing_torch(attend: Attend, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch\n\ntorch.__version__ = '2.6.0+cu124'\n")
    nodes = [
        attend(fingerprint(0, 2)),
        attend(fingerprint(1, 2), environment={"PYTHONPATH": str(tmp_path)}),
    ]
    for node in nodes:
        leave = node.expect(Leave)
        assert leave.exit_code == NodesDisagreeError.exit_code
        assert "torch release: " in leave.reason
        assert "2.6 on node 1" in leave.reason


def test_a_stranger_is_turned_away_and_the_job_starts_all_the_same(attend: Attend) -> None:
    host = attend(fingerprint(0, 2))
    stranger = attend(fingerprint(1, 2, job_id="job-8", host="elsewhere"))
    leave = stranger.expect(Leave)
    assert leave.exit_code == NodesAbsentError.exit_code
    assert "elsewhere (10.0.0.1) belongs to job 'job-8'" in leave.reason
    guest = attend(fingerprint(1, 2))
    host.expect(Go)
    guest.expect(Go)
    assert any("a stranger was turned away" in text for text in host.said)


def test_a_rank_beyond_the_number_of_nodes_is_named(attend: Attend) -> None:
    nodes = [attend(fingerprint(0, 2)), attend(fingerprint(5, 8))]
    for node in nodes:
        leave = node.expect(Leave)
        assert leave.exit_code == TopologyError.exit_code
        assert "gpu-5 (10.0.0.5) says it is node 5 of 8, but node 0 (gpu-0 (10.0.0.0))" in leave.reason


def test_a_world_size_that_counts_processes_is_named_when_time_is_up(attend: Attend) -> None:
    nodes = [attend(fingerprint(rank, 16), timeout_s=5.0) for rank in range(2)]
    for node in nodes:
        leave = node.expect(Leave)
        assert leave.exit_code == TopologyError.exit_code
        assert "14 of 16 absent: nodes 2-15; last seen: never" in leave.reason
        assert "WORLD_SIZE=16 looks like the number of processes" in leave.reason
    assert any("looks like the number of processes" in text for text in nodes[0].said)


def test_a_node_that_left_before_the_start_is_absent_with_a_date(attend: Attend) -> None:
    host = attend(fingerprint(0, 3), timeout_s=12.0)
    guest = attend(fingerprint(1, 3))
    host.hear("1 of 3 absent: node 2")
    guest.link.send(lines.Stopping("asked", "was told to end", 0))
    leave = host.expect(Leave)
    assert "2 of 3 absent: node 1, node 2; last seen: node 1 " in leave.reason
    assert leave.reason.endswith("s ago, the others never, after 12 s")


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
        node.expect(Go)


def test_of_several_restarts_the_highest_number_counts(attend: Attend) -> None:
    nodes = [attend(fingerprint(0, 2)), attend(fingerprint(1, 2, restarts_used=3))]
    assert [node.expect(Go).restarts_used for node in nodes] == [3, 3]
