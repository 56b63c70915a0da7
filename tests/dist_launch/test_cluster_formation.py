"""Rank 0's side of a waiting cluster, and nodes that join it from this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.dist_launch.cluster_formation import ClusterFormation
from platform_launch.dist_launch.roster import PURPOSE, NodeReadiness, WaitRoster
from platform_launch.rendezvous.client import Opened, open_one
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.listening import listen
from platform_launch.rendezvous.loop import event_loop
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.participant import Participant, RejectedError, hello_of
from tests.dist_launch.lab import LIMIT_S
from tests.dist_launch.test_cluster import MEMBER

NNODES = 3


def member(rank: int, identity: str = "") -> ClusterMember:
    return replace(MEMBER, rank=rank, host=f"node{rank}", identity=identity or f"wait{rank}")


def fingerprint(of: ClusterMember) -> Fingerprint:
    return Fingerprint(of.rank, NNODES, of.host, (of.address,), of.identity, None)


@dataclass
class JoinedNodes:
    """A formation and the nodes that joined it."""

    port: int
    formation: ClusterFormation
    lines: list[str]
    nodes: list[Participant] = field(default_factory=list)

    def join(self, node: ClusterMember, details: Message | None = None) -> Participant:
        hello = hello_of(fingerprint(node), PURPOSE, None, "")
        opened = event_loop().call(open_one("127.0.0.1", self.port, hello, None), LIMIT_S)
        assert isinstance(opened, Opened)
        participant = Participant(
            opened, fingerprint(node), purpose=PURPOSE, details=node if details is None else details
        )
        participant.join()
        self.nodes.append(participant)
        return participant

    def until(self, true: Callable[[], bool]) -> None:
        """Let everybody go on until something is true."""
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline, self.lines
            self.formation.step()
            for node in self.nodes:
                node.step()
            time.sleep(0.01)

    def says(self, text: str) -> None:
        self.until(lambda: any(text in line for line in self.lines))


@pytest.fixture
def forming() -> Iterator[JoinedNodes]:
    lines: list[str] = []
    listener = listen((0,), NNODES)
    port = listener.getsockname()[1]
    me = member(0)
    coordinator = Coordinator(
        [listener],
        fingerprint(me),
        purpose=PURPOSE,
        log=lambda line: lines.append(f"{line.level} {line.text}"),
        same_nnodes=True,
    )
    formation = ClusterFormation(coordinator, me, NNODES, lambda level, text: lines.append(f"{level} {text}"))
    joined = JoinedNodes(port, formation, lines)
    yield joined
    for node in joined.nodes:
        node.close()
    coordinator.close()


def roster_of(node: Participant) -> WaitRoster:
    roster = node.state(WaitRoster)
    assert roster is not None
    return roster


def test_all_who_came_are_told_of_all_others(forming: JoinedNodes) -> None:
    second = forming.join(member(1))
    forming.until(lambda: second.membership is not None and second.state(WaitRoster) is not None)
    forming.until(lambda: roster_of(second).absent == (2,))
    assert roster_of(second).members == ()
    forming.join(member(2))
    forming.until(lambda: bool(roster_of(second).members))
    assert roster_of(second).members == (member(0), member(1), member(2))


def test_who_leaves_before_all_have_met_has_not_come(forming: JoinedNodes) -> None:
    second = forming.join(member(1))
    forming.until(lambda: forming.formation.roster.absent == (2,))
    forming.nodes.remove(second)
    second.leave()
    forming.until(lambda: forming.formation.roster.absent == (1, 2))
    forming.join(member(1, "again"))
    forming.join(member(2))
    forming.until(lambda: bool(forming.formation.roster.members))
    assert forming.formation.roster.members[1].identity == "again"


def test_nobody_else_is_rank_0(forming: JoinedNodes) -> None:
    stranger = replace(member(0, "stranger"), public_key="ssh-ed25519 AAAAevil")
    forming.join(stranger)
    with pytest.raises(RejectedError, match="two nodes have rank 0"):
        forming.until(lambda: False)
    forming.nodes.clear()
    for rank in (1, 2):
        forming.join(member(rank))
    forming.until(lambda: bool(forming.formation.roster.members))
    assert forming.formation.roster.members[0] == member(0)


@pytest.mark.parametrize("details", [NodeReadiness(1), member(2)])
def test_a_node_without_facts_of_its_own_gets_no_place(forming: JoinedNodes, details: Message) -> None:
    forming.join(member(1), details)
    forming.says("joined as node 1 without its SSH details")
    assert forming.formation.roster.absent == (1, 2)


def test_each_problem_of_a_node_is_said_once_and_then_that_all_are_ready(forming: JoinedNodes) -> None:
    nodes = [forming.join(member(rank)) for rank in (1, 2)]
    forming.until(lambda: bool(forming.formation.roster.members))
    edition = forming.formation.roster.edition
    forming.formation.own_readiness = NodeReadiness(edition)
    nodes[0].publish(NodeReadiness(edition))
    assert not forming.formation.others_have_answered()
    for _ in range(3):
        nodes[1].publish(NodeReadiness(edition, "No space left on device"))
        forming.says("ERROR rank-2 (node2, 10.0.0.1): No space left on device")
    assert forming.formation.others_have_answered()
    nodes[1].publish(NodeReadiness(edition))
    forming.says("SUCCESS all 3 nodes wait")
    assert sum("No space left" in line for line in forming.lines) == 1


def test_a_member_that_writes_what_it_likes_is_no_message() -> None:
    forged = encode(MEMBER).replace(b'"root"', b'"root -o ProxyCommand=x"')
    with pytest.raises(InvalidMessageError, match="cannot be used"):
        decode(forged, ClusterMember)


def test_a_node_that_comes_back_with_another_address_or_interpreter_is_refused(forming: JoinedNodes) -> None:
    """Rank 0 would start programs there, and send it what its jobs are given."""
    forming.join(member(1))
    forming.join(member(2))
    forming.until(lambda: bool(forming.formation.roster.members))
    forming.nodes.pop(0).close()
    rank_1 = forming.formation._coordinator.membership.ranks[1]
    forming.until(lambda: forming.formation._coordinator.closed_s(rank_1) > 0)
    for forged in (
        replace(member(1), address="10.6.6.6"),
        replace(member(1), python="/tmp/evil"),
        replace(member(1), host_key="ssh-ed25519 AAAAevil"),
    ):
        thief = forming.join(forged)
        with pytest.raises(RejectedError, match="two nodes have rank 1"):
            forming.until(lambda: False)
        forming.nodes.remove(thief)
    assert forming.formation.roster.members[1] == member(1)
    assert any("two nodes have rank 1" in line for line in forming.lines)
