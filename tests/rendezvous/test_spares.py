"""Spares: nodes that wait without a rank until one of the others is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch.errors import HardwareError, InstallationError, NodesDisagreeError, UnfitNodeError
from platform_launch.health.finding import DeviceFinding, Grade, node_health
from platform_launch.rendezvous.ending import EndKind, NodeEnding
from platform_launch.rendezvous.membership import Change, ChangeKind, Membership
from platform_launch.rendezvous.participant import RejectedError
from platform_launch.rendezvous.protocol import Join, RejectionKind
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.run.gathering import Gathering
from platform_launch.rendezvous.run.hosts import RendezvousHosts
from platform_launch.rendezvous.run.participation import Participation
from platform_launch.rendezvous.run.run_monitor import RunMonitor
from platform_launch.rendezvous.run.state import PURPOSE as RUN
from platform_launch.rendezvous.run.state import RunPhase, RunState, StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import OwnProcesses, RunTask
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import PURPOSE, Live, live, until
from tests.rendezvous.nodes import fingerprint

LOST = DeviceFinding("gpu-lost", Grade.BAD, "GPU 3", "no longer answers")


def come(membership: Membership, slot: int, rank: int, *, spare: bool = False, **changes: Any) -> Change:
    change = membership.receive(
        slot, Join(fingerprint(rank, 2, **changes), f"session {slot}", 1, spare=spare)
    )
    assert change is not None
    return change


def test_replaced_node_returns_as_a_spare() -> None:
    membership = Membership(fingerprint(0, 2))
    spare = come(membership, 2, 2, spare=True).member
    membership.assign(spare, 1)
    returned = come(membership, 3, 1, identity="woken up")
    assert (returned.kind, returned.member.rank) == (ChangeKind.JOINED, None)
    assert membership.ranks[1].node.identity == spare.node.identity
    # Its connection breaks: it is a spare still.
    again = come(membership, 4, 1, identity="woken up")
    assert (again.kind, again.member.rank) == (ChangeKind.RETURNED, None)


def test_replacement_whose_rank_is_occupied_becomes_a_spare() -> None:
    membership = Membership(fingerprint(0, 2))
    come(membership, 1, 1)
    late = come(membership, 2, 1, identity="stood in", stand_in=True)
    assert (late.kind, late.member.rank) == (ChangeKind.JOINED, None)
    assert [member.node.identity for member in membership.spares] == ["stood in"]


def test_node_that_cannot_start_never_becomes_a_spare() -> None:
    membership = Membership(fingerprint(0, 2))
    membership.assign(come(membership, 2, 2, spare=True).member, 1)
    assert membership.receive(3, Join(fingerprint(1, 2, identity="sick", refusal="no GPU"), "s", 1)) is None
    (change,) = membership.decide(lambda _slot: 0.0, lambda _slot: True, 0.0)
    assert change.rejection is not None
    assert change.rejection.kind is RejectionKind.RANK_TAKEN


def test_bad_node_is_replaced_only_if_there_is_a_spare() -> None:
    for spares, bad in ((1, (1,)), (0, ())):
        with live(2) as rendezvous:
            nodes = [rendezvous.joined(rank) for rank in range(2)]
            waiting = [rendezvous.joined(2 + index, spare=True) for index in range(spares)]
            rendezvous.halted.set()
            with rendezvous.lock:
                monitor = RunMonitor(
                    rendezvous.coordinator,
                    RunState(RunPhase.RUNNING, 2),
                    node_timeout_s=LIMIT_S,
                    grace_s=1.0,
                )
            for rank, code in enumerate((1, 9)):
                health = node_health([LOST] * (code == 9))
                ending = NodeEnding(EndKind.FAILED, rank, "host", code, ended_at_s=1.0 + rank, health=health)
                nodes[rank].publish(TrainingEnded(ending, None))
            coordinator = rendezvous.coordinator
            until(lambda: not coordinator.step() and len(coordinator.values(TrainingEnded)) == 2)  # noqa: B023
            monitor._stop_all(NodeEnding(EndKind.FAILED, 1, "host", 9), 0.0)

            def has_ended(monitor: RunMonitor = monitor) -> bool:
                monitor.step()
                return monitor.outcome is not None

            until(has_ended, *nodes, *waiting)
            assert monitor.outcome is not None
            assert monitor.outcome.restart is bool(spares)
            assert (monitor.outcome.replaced, monitor.outcome.bad) == (bad, bad)
            (unwell,) = monitor.outcome.unwell
            assert unwell.health.reasons
            assert not unwell.health.findings, "of many nodes they would not fit what launchers are told"


@pytest.mark.parametrize("reports", [True, False])
def test_node_that_leaves_without_a_report_counts_as_lost(reports: bool) -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        rendezvous.halted.set()
        with rendezvous.lock:
            monitor = RunMonitor(
                rendezvous.coordinator, RunState(RunPhase.RUNNING, 2), node_timeout_s=LIMIT_S, grace_s=1.0
            )
        if reports:
            nodes[1].publish(TrainingEnded(NodeEnding(EndKind.FINISHED, 1, "host", 0), None))
        nodes[1].leave()
        member = rendezvous.coordinator.membership.ranks[1]

        def has_left() -> bool:
            monitor.step()
            return rendezvous.coordinator.has_left(member)

        until(has_left, nodes[0])
        monitor.step()
        ending = monitor.state.ending
        assert (ending is None) is reports
        if ending is not None:
            assert (ending.kind, ending.ranks, ending.silent_s) == (EndKind.VANISHED, (1,), LIMIT_S)


@pytest.mark.parametrize("restarts", [0, 1])
def test_stop_request_as_the_run_begins_ends_it(restarts: int) -> None:
    """It withdraws from a roll call that is complete, which it does not know yet."""
    asked = NodeEnding(EndKind.STOPPED, 1, "host", 143, stopped_by="SIGTERM")
    with live(2, purpose=RUN, mark=RendezvousHosts().mark(1)) as rendezvous:
        coordinator = rendezvous.coordinator
        me = fingerprint(1, 2, restarts_used=restarts)
        task = RunTask(me, "127.0.0.1", 1, (rendezvous.port,), LIMIT_S, LIMIT_S, 1.0)
        node = Participation(task, OwnProcesses(lambda: None, lambda: b""), lambda _news: None)
        node.start()
        until(lambda: 1 in coordinator.membership.ranks)
        rendezvous.halted.set()
        with rendezvous.lock:
            settlement = RunMonitor(
                coordinator, RunState(RunPhase.RUNNING, 2), node_timeout_s=LIMIT_S, grace_s=1.0
            )
        node.send(StopAll(asked))

        def is_over() -> bool:
            settlement.step()
            return settlement.outcome is not None

        until(is_over)
        assert settlement.state.ending == asked
        rendezvous.halted.clear()
        node.close()


@takes_long
def test_job_continues_while_enough_nodes_are_alive() -> None:
    script = Path(__file__).with_name("races.py")
    done = subprocess.run(
        [sys.executable, script, "8", "1"], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    jobs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(jobs) == 8, done.stderr
    assert [job for job in jobs if job["wrong"]] == []


def gather(rendezvous: Live, *, nnodes: int = 2, spares: int = 0, timeout_s: float = LIMIT_S) -> Gathering:
    """Begin the roll call; from now on, the test makes its steps."""
    rendezvous.halted.set()
    with rendezvous.lock:
        return Gathering(
            rendezvous.coordinator,
            fingerprint(0, nnodes),
            timeout_s=timeout_s,
            node_timeout_s=LIMIT_S,
            log=rendezvous.said.append,
            spares=spares,
        )


@pytest.mark.parametrize(
    "code", [UnfitNodeError.exit_code, HardwareError.exit_code, InstallationError.exit_code]
)
def test_unfit_or_broken_node_is_named_and_replaced(code: int) -> None:
    with live(2) as rendezvous:
        gathering = gather(rendezvous, spares=1)
        unfit = rendezvous.participant(1, refusal="not with this node", refusal_code=code)
        unfit.join()
        nodes = [rendezvous.participant(0), rendezvous.participant(2, spare=True)]
        for node in nodes:
            node.join()
        until(lambda: gathering.step().phase is RunPhase.RUNNING, *nodes)
        assert gathering.present[1].host == "gpu-2"
        assert any("not with this node; a spare may replace it" in text for text in rendezvous.warnings)


def test_more_nodes_without_torch_than_spares_end_the_job() -> None:
    with live(4) as rendezvous:
        gathering = gather(rendezvous, nnodes=4, spares=1)
        for rank in (1, 2):
            assert gathering.step().phase is RunPhase.WAITING
            rendezvous.participant(rank, refusal="no torch", refusal_code=InstallationError.exit_code).join()
        until(lambda: gathering.step().phase is RunPhase.REFUSED)
        refusal = gathering.state.refusal
        assert refusal is not None
        assert refusal.exit_code == InstallationError.exit_code


def test_node_that_returns_with_torch_needs_no_spare() -> None:
    with live(3) as rendezvous:
        gathering = gather(rendezvous, nnodes=3, spares=1)
        code = InstallationError.exit_code
        rendezvous.participant(1, refusal="no torch", refusal_code=code, identity="without").join()
        until(lambda: bool(gathering.step() and rendezvous.warnings))
        mended = rendezvous.participant(1, identity="mended")
        mended.join()
        until(lambda: bool(gathering.step()) and 1 in gathering.present, mended)
        rendezvous.participant(2, refusal="no torch", refusal_code=code).join()
        until(lambda: bool(gathering.step().refusal) or len(rendezvous.warnings) > 1, mended)
        assert gathering.state.refusal is None


def test_spare_immediately_replaces_a_node_of_another_build() -> None:
    with live(2) as rendezvous:
        gathering = gather(rendezvous, spares=1)
        with pytest.raises(RejectedError):
            rendezvous.participant(1, purpose=Purpose(PURPOSE.name, ())).join()
        nodes = [rendezvous.participant(0), rendezvous.participant(2, spare=True)]
        for node in nodes:
            node.join()
        until(lambda: gathering.step().phase is RunPhase.RUNNING, *nodes)
        assert gathering.present[1].host == "gpu-2"


def test_node_of_another_build_is_the_reason_without_a_spare() -> None:
    other = Purpose(PURPOSE.name, ())
    with live(2) as rendezvous:
        gathering = gather(rendezvous, spares=1, timeout_s=1.0)
        with pytest.raises(RejectedError):
            rendezvous.participant(1, purpose=other).join()
        until(lambda: gathering.step().refusal is not None)
        refusal = gathering.state.refusal
        assert refusal is not None
        assert (refusal.exit_code, refusal.node) == (NodesDisagreeError.exit_code, 1)


def test_refusal_waits_for_node_0_to_join() -> None:
    with live(2) as rendezvous:
        gathering = gather(rendezvous, timeout_s=0.0)
        until(lambda: gathering.step().phase is RunPhase.REFUSED)
        assert not gathering.all_left(hurried=False)
        assert gathering.all_left(hurried=True), "of a node that is told to end nothing more will come"
        own = rendezvous.participant(0)
        own.join()
        until(lambda: not gathering.all_left(hurried=True), own)
        own.leave()
        until(lambda: gathering.all_left(hurried=False))


def test_silent_node_is_reported_to_all_and_keeps_its_rank() -> None:
    with live(3) as rendezvous:
        gathering = gather(rendezvous, nnodes=3)
        nodes = [rendezvous.participant(rank) for rank in range(2)]
        for node in nodes:
            node.join()
        until(lambda: bool(gathering.step()) and 1 in gathering.present, *nodes)
        silent = nodes[1]._client
        assert silent is not None
        silent.hold(True)
        until(lambda: 1 in gathering.step().last_seen_s, nodes[0])
        assert gathering.state.absent == (1, 2)
        assert "last heard from node 1 " in rendezvous.said[-1].text
        assert 1 in gathering.present
        nodes.append(rendezvous.participant(2))
        nodes[2].join()
        silent.hold(False)
        until(lambda: gathering.step().phase is RunPhase.RUNNING, *nodes)
