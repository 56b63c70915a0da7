"""A job without node 0: who opens a rendezvous, who closes one, and which ones are not trusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest

from platform_launch.console import Console
from platform_launch.launch import together
from platform_launch.launch.attempt import JobMovedError
from platform_launch.launch.exit_code import ExitFile
from platform_launch.launch.node_ending import TrainingOutput
from platform_launch.launch.saves import Saves
from platform_launch.launch.together import run_together
from platform_launch.launch.training_command import NodePlace, TrainingCommand
from platform_launch.launch.watched_training import LaunchContext
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.connecting import Found, JoinTarget
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.ending import EndKind, NodeEnding, RunOutcome
from platform_launch.rendezvous.listening import listen
from platform_launch.rendezvous.run.arriving import Arrival, Command, Wake, WithdrawnError
from platform_launch.rendezvous.run.hosts import RendezvousHosts, is_open_to, must_yield
from platform_launch.rendezvous.run.leading import Lead
from platform_launch.rendezvous.run.searching import Search
from platform_launch.rendezvous.run.state import PURPOSE as RUN
from platform_launch.rendezvous.run.state import RunPhase, RunState, StopAll
from platform_launch.rendezvous.run.task import Moved, RunTask
from platform_launch.supervise import Command as ProcessCommand
from platform_launch.supervise import Outcome
from platform_launch.supervise.signals import SignalInbox
from tests.rendezvous.live import PURPOSE, Live, live
from tests.rendezvous.nodes import fingerprint

PLACES = RendezvousHosts(("node0", "127.0.0.1", "192.0.2.9"), own=1, job="job-7 0")
WAITING = RunState(RunPhase.WAITING, 2)
SECRET = Secret("0123456789abcdef")


def task(**changes: object) -> RunTask:
    known = RunTask(
        node=fingerprint(2, restarts_used=1),
        master_addr="node0",
        master_port=1,
        ports=(2,),
        roll_call_timeout_s=60.0,
        node_timeout_s=60.0,
        grace_s=1.0,
        spares=1,
        max_restarts=3,
        rendezvous_hosts=PLACES,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def is_own_turn_later(of: RunTask) -> bool:
    search = Search(of, of.node)
    search._since -= 60.0
    return search.must_lead


def begun(restarts: int, phase: RunPhase = RunPhase.RUNNING) -> RunState:
    return RunState(phase, 2, restarts_used=restarts)


def test_run_of_an_earlier_attempt_is_not_a_successor() -> None:
    assert is_open_to(WAITING, 3)
    assert is_open_to(begun(3), 3)
    assert is_open_to(begun(4, RunPhase.ENDED), 3)
    assert not is_open_to(begun(2), 3)
    assert not is_open_to(RunState(RunPhase.MOVED, 2), 0)


def test_of_two_gathering_hosts_the_first_stays_and_a_run_precedes_both() -> None:
    assert must_yield(1, 0, WAITING, 1)
    assert not must_yield(0, 1, WAITING, 1)
    assert must_yield(0, 1, begun(1), 1)
    assert not must_yield(1, 0, begun(0), 1)  # that node 0 was stopped, and does not know what came since


def test_node_opens_a_rendezvous_only_on_its_own_host_after_the_first_start() -> None:
    assert not Search(task(lost=True), task().node).must_lead  # its patience has only begun
    assert is_own_turn_later(task(lost=True))
    for other in (
        task(rendezvous_hosts=replace(PLACES, own=None)),  # it trains, and no spare was started here
        task(rendezvous_hosts=replace(PLACES, own=2)),  # that is another machine
        task(rendezvous_hosts=RendezvousHosts(why_not="no list of hosts")),
        task(node=fingerprint(2)),  # it never heard of a node 0 that could be lost
    ):
        assert not is_own_turn_later(other)


def test_spare_remembers_the_run_while_nodes_gather_again() -> None:
    search = Search(task(spare=True), fingerprint(2))
    search.receive(begun(2))
    search.receive(WAITING)
    assert search.restarts == 2


@pytest.mark.parametrize("spare", [False, True])
def test_stop_request_between_attempts_ends_the_job_on_a_node_but_not_on_a_spare(spare: bool) -> None:
    ending = NodeEnding(EndKind.STOPPED, 2, "somewhere", 143, stopped_by="SIGTERM")
    commands: Queue[Command | Wake] = Queue()
    commands.put(StopAll(ending))
    arrival = Arrival(task(spare=spare), commands, lambda _said: None)
    with pytest.raises(WithdrawnError) as told:
        arrival._pause(60.0)
    assert told.value.ending == ending
    assert told.value.for_all is not spare


class ScriptedAttempt:
    """An attempt that ends at once: each of ``ways`` is a host to move to, or ends the attempt."""

    hung, health, saves = False, None, Saves()

    def __init__(self, ways: Iterator[str | JobMovedError], task: RunTask) -> None:
        self._way = next(ways)
        self.output = TrainingOutput(Path("/dev/null"), lambda: b"")
        self.task = task

    def join(self) -> None:
        if isinstance(self._way, JobMovedError):
            raise self._way
        self.task = replace(self.task, master_addr=self._way)

    @property
    def place(self) -> NodePlace:
        return NodePlace(self.task.node.node_rank, self.task.master_addr, self.task.node.nnodes)

    def train(self) -> Outcome:
        return Outcome(1, None, 1.0, None, None, ())

    def was_in_the_way(self, _outcome: Outcome) -> bool:
        return False

    def newest_checkpoint(self) -> None:
        pass

    def conclude(self, _outcome: Outcome, not_again: object) -> RunOutcome:
        return RunOutcome(1, restart=not_again is None)

    def close(self) -> None:
        pass


def test_job_that_moved_twice_is_searched_where_it_ran_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways: Iterator[str | JobMovedError] = iter([JobMovedError(Moved("node7", 0)), "node0", "node0"])
    looked_for: list[str] = []

    def attempt(_training: object, _again: object, of: RunTask, *_rest: object) -> ScriptedAttempt:
        looked_for.append(of.master_addr)
        return ScriptedAttempt(ways, of)

    def training_at(_place: NodePlace) -> TrainingCommand:
        return TrainingCommand(ProcessCommand((), {}), Path("/dev/null"), "", 1.0, ExitFile(None))

    monkeypatch.setattr(together, "Attempt", attempt)
    first = replace(task(), node=fingerprint(1), max_restarts=1, spares=0, rendezvous_hosts=RendezvousHosts())
    run_together(training_at, first, LaunchContext(Console(), SignalInbox()))
    assert looked_for == ["node0", "node7", "node0"]


def test_host_that_is_not_in_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="own=7: expected one of 3 hosts"):
        replace(PLACES, own=7)


def test_job_mark_is_equal_on_all_nodes_and_differs_between_jobs() -> None:
    assert task().mark == task(rendezvous_hosts=replace(PLACES, own=None)).mark
    assert task().mark == task(rendezvous_hosts=replace(PLACES, hosts=("10.0.0.1", *PLACES.hosts[1:]))).mark
    for other in (
        task(master_port=3),
        task(rendezvous_hosts=replace(PLACES, job="job-8 0")),
        task(rendezvous_hosts=RendezvousHosts()),
    ):
        assert task().mark != other.mark


@contextmanager
def stranger(secret: Secret | None, mark: str) -> Iterator[Live]:
    """Serve a rendezvous that claims to be the job's, far ahead of all others."""
    with live(2, secret=secret, mark=mark) as rendezvous:
        with rendezvous.lock:
            rendezvous.coordinator.publish(begun(99))
        yield rendezvous


@pytest.mark.parametrize(
    ("secret", "obstacle"),
    [
        (SECRET, ""),
        (None, "its answer cannot be trusted"),
        (Secret("fedcba9876543210"), "its answer cannot be trusted"),
    ],
)
def test_stranger_cannot_attract_the_nodes(secret: Secret | None, obstacle: str) -> None:
    with stranger(secret, task().mark) as rendezvous:
        target = JoinTarget("192.0.2.9", (1,), PURPOSE, task().node, SECRET, mark=task().mark)
        found = Found(target, "127.0.0.1", rendezvous.port, rendezvous.coordinator.welcome)
        assert Search(task(), task().node).obstacle(found) == obstacle


def test_node_0_distinguishes_its_own_rendezvous() -> None:
    """It checks its master address each second while that seems to be another machine's."""
    listeners = [listen((0,), 2) for _ in range(2)]
    of = task(node=fingerprint(0))
    mine, other = (
        Coordinator([listener], fingerprint(0), purpose=RUN, log=lambda _line: None, mark=of.mark)
        for listener in listeners
    )
    lead = Lead(of, fingerprint(0), lambda _line: None)
    lead._coordinator = mine
    found = []
    for listener in listeners:
        lead.port = listener.getsockname()[1]
        found.append(lead._leads_here("127.0.0.1"))
    assert found == [True, False]
    mine.close()
    other.close()
