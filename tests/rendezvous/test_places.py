"""Where a run may go on without node 0: who opens a rendezvous, who gives one up, whom nobody believes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.connecting import Meet
from platform_launch.rendezvous.messages import InvalidMessageError, decode, encode
from platform_launch.rendezvous.run.launcher import RunTask
from platform_launch.rendezvous.run.places import Places, is_open_to, must_yield
from platform_launch.rendezvous.run.searching import Search
from platform_launch.rendezvous.run.state import RunPhase, RunState
from tests.rendezvous.live import PURPOSE, Live, live
from tests.rendezvous.nodes import fingerprint

PLACES = Places(("node0", "127.0.0.1", "192.0.2.9"), own=1, job="job-7 0")
WAITING = RunState(RunPhase.WAITING, 2)
SECRET = Secret("0123456789abcdef")


def task(**changes: object) -> RunTask:
    known = RunTask(
        node=fingerprint(2, restarts_used=1),
        master_addr="node0",
        master_port=1,
        rendezvous_port=2,
        roll_call_timeout_s=60.0,
        node_timeout_s=60.0,
        grace_s=1.0,
        log_path="/dev/null",
        spares=1,
        max_restarts=3,
        places=PLACES,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def is_own_turn_later(of: RunTask) -> bool:
    search = Search(of, of.node)
    search._since -= 60.0
    return search.is_own_turn


def begun(restarts: int, phase: RunPhase = RunPhase.RUNNING) -> RunState:
    return RunState(phase, 2, restarts_used=restarts)


def test_a_run_of_an_earlier_start_is_nobodys_successor() -> None:
    assert is_open_to(WAITING, 3)
    assert is_open_to(begun(3), 3)
    assert is_open_to(begun(4, RunPhase.ENDED), 3)
    assert not is_open_to(begun(2), 3)
    assert not is_open_to(RunState(RunPhase.MOVED, 2), 0)


def test_of_two_places_where_nodes_gather_the_first_in_the_list_stays_and_a_run_beats_both() -> None:
    assert must_yield(1, 0, WAITING, 1)
    assert not must_yield(0, 1, WAITING, 1)
    assert must_yield(0, 1, begun(1), 1)
    assert not must_yield(1, 0, begun(0), 1)  # that node 0 was stopped, and does not know what came since


def test_a_place_is_opened_only_by_who_was_started_there_and_after_a_first_start() -> None:
    assert not Search(task(lost=True), task().node).is_own_turn  # its patience has only begun
    assert is_own_turn_later(task(lost=True))
    for other in (
        task(places=replace(PLACES, own=None)),  # it trains, and no spare was started here
        task(places=replace(PLACES, own=2)),  # that is another machine
        task(places=Places(stays="no list of hosts")),
        task(node=fingerprint(2)),  # it never heard of a node 0 that could be lost
        task(rejoining=True),
    ):
        assert not is_own_turn_later(other)


def test_a_task_with_a_place_that_is_not_in_its_list_is_no_task() -> None:
    told = encode(task())
    assert decode(told, RunTask) == task()
    with pytest.raises(InvalidMessageError, match="own=7: expected one of 3 places"):
        decode(told.replace(b'"own":1', b'"own":7'), RunTask)


@contextmanager
def stranger(secret: Secret | None, job: str) -> Iterator[Live]:
    """Serve a rendezvous that claims to be the job's, far ahead of all others."""
    with live(2, secret=secret, job=job) as rendezvous:
        with rendezvous.lock:
            rendezvous.coordinator.publish(begun(99))
        yield rendezvous


@pytest.mark.parametrize(
    ("secret", "job", "obstacle"),
    [
        (SECRET, PLACES.mark, ""),
        (SECRET, "another", "another job meets there"),
        (None, PLACES.mark, "it says nothing that can be trusted"),
        (Secret("fedcba9876543210"), PLACES.mark, "it says nothing that can be trusted"),
    ],
)
def test_no_stranger_draws_the_nodes_to_its_place(secret: Secret | None, job: str, obstacle: str) -> None:
    with stranger(secret, job) as rendezvous:
        found = rendezvous.participant(2, secret=SECRET)
        meet = Meet("192.0.2.9", rendezvous.store.port, PURPOSE, task().node)
        assert Search(task(), task().node).obstacle(meet, found) == obstacle
