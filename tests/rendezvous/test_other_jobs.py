"""Nodes of another job that use the same ports: they wait, and are rejected once that is certain."""

from __future__ import annotations

from platform_launch.hardware import ports
from platform_launch.rendezvous.membership import DOUBTED_FOR_S, Change, ChangeKind, Membership
from platform_launch.rendezvous.protocol import Join, RejectionKind
from tests.rendezvous.nodes import fingerprint


def come(membership: Membership, number: int, *, nnodes: int = 2, job: str) -> Change | None:
    node = fingerprint(1, nnodes, identity=f"launcher {number}", job=job, command=f"train {job}")
    return membership.receive(number, Join(node, "session", 1))


def decide(membership: Membership, now: float) -> list[Change]:
    return membership.decide(lambda _number: 0.0, lambda _number: True, now)


def rejected(change: Change | None) -> bool:
    return (
        change is not None
        and change.rejection is not None
        and (change.rejection.kind is RejectionKind.OTHER_JOB)
    )


def test_node_with_another_program_waits_for_a_matching_node() -> None:
    membership = Membership(fingerprint(0, job="A"))
    assert come(membership, 1, job="B") is None
    assert [member.node.job for member in membership.doubted] == ["B"]
    assert decide(membership, 0.0) == []
    own = come(membership, 2, job="A")
    assert own is not None
    assert own.kind is ChangeKind.JOINED
    (change,) = decide(membership, 1.0)
    assert rejected(change)


def test_job_with_different_programs_starts_later() -> None:
    membership = Membership(fingerprint(0, job="A"))
    assert come(membership, 1, job="of node 1") is None
    assert decide(membership, 0.0) == decide(membership, DOUBTED_FOR_S - 0.1) == []
    (change,) = decide(membership, DOUBTED_FOR_S)
    assert change.kind is ChangeKind.JOINED


def test_nodes_of_a_job_whose_node_0_was_here_are_rejected() -> None:
    membership = Membership(fingerprint(0, job="A"))
    assert come(membership, 1, job="B") is None
    decide(membership, 0.0)
    decide(membership, DOUBTED_FOR_S)  # it takes part by now
    membership.record_other_job("B")
    (change,) = membership.expel_other_jobs()
    assert rejected(change)
    assert not membership.ranks
    assert rejected(come(membership, 2, job="B"))


def test_different_number_of_nodes_does_not_mean_another_job() -> None:
    assert rejected(come(Membership(fingerprint(0, job="A")), 1, nnodes=3, job="B"))
    same = come(Membership(fingerprint(0, job="A"), same_nnodes=True), 1, nnodes=3, job="A")
    assert same is not None
    assert same.rejection is not None
    assert same.rejection.kind is RejectionKind.RANK_OUT_OF_RANGE


def test_port_is_reserved_once_per_host_without_opening_it() -> None:
    number = ports.free()
    assert ports.reserve(number)
    assert ports.reserve(number)  # this process has it
    assert ports.probe(number).problem == ""
    assert "pid" in ports.reserved_by(number)
