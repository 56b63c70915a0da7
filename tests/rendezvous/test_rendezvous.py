"""What a rendezvous offers to every purpose, over real connections."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import weakref

import pytest

from platform_launch.rendezvous import client, lines, server
from platform_launch.rendezvous.client import Opened, Unopened, open_one, reset
from platform_launch.rendezvous.loop import event_loop
from platform_launch.rendezvous.membership import ChangeKind
from platform_launch.rendezvous.messages import InvalidMessageError, Message
from platform_launch.rendezvous.participant import (
    CoordinatorReplacedError,
    NodeSession,
    Participant,
    RejectedError,
    hello_of,
)
from platform_launch.rendezvous.protocol import RejectionKind
from platform_launch.rendezvous.purpose import Purpose
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import PURPOSE, Bulletin, Health, Question, Reply, live, until
from tests.rendezvous.nodes import fingerprint


def test_all_nodes_receive_what_the_coordinator_publishes() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        for text in ("first", "second"):
            with rendezvous.lock:
                rendezvous.coordinator.publish(Bulletin(text))
            until(lambda: all(node.state(Bulletin) == Bulletin(text) for node in nodes), *nodes)  # noqa: B023


def test_published_value_is_delivered_without_polling() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        rendezvous.halted.set()
        with rendezvous.lock:
            rendezvous.coordinator.publish(Bulletin("at once"))
        until(lambda: node.state(Bulletin) == Bulletin("at once"), node)
        rendezvous.halted.clear()


def test_no_short_line_waits_for_the_acknowledgement_of_an_earlier_one() -> None:
    """With Nagle's algorithm, each state that node 0 publishes may come 40 ms late."""
    with live(2) as rendezvous:
        rendezvous.joined(1)
        (peer,) = rendezvous.coordinator._server._peers.values()
        client = rendezvous.nodes[0]._client
        assert client is not None
        assert peer.writer is not None
        for writer in (peer.writer, client._opened.writer):
            connection = writer.get_extra_info("socket")
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_values_that_nodes_refresh_are_read_by_all() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        for temperature in (40, 70):
            nodes[1].publish(Health(temperature))
            expected = {1: Health(temperature)}
            until(lambda: rendezvous.coordinator.values(Health) == expected, *nodes)  # noqa: B023
            assert nodes[0].value_of(1, Health) == Health(temperature)
        assert nodes[0].values(Health) == {1: Health(70)}


def test_request_collects_the_answers_of_all_other_nodes() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        inquiry = nodes[2].query(Question("what are you doing?"), limit_s=LIMIT_S)
        until(lambda: all(node._requests for node in nodes[:2]), *nodes)
        for rank, node in enumerate(nodes[:2]):
            (request,) = node.requests()
            assert request.body == Question("what are you doing?")
            assert node.requests() == []
            node.answer(request, Reply(f"node {rank} sleeps"))
        until(lambda: inquiry.done, *nodes)
        answers = {member.node_rank: answer for member, answer in inquiry.answers.items()}
        assert answers == {0: Reply("node 0 sleeps"), 1: Reply("node 1 sleeps")}


def test_request_to_some_ranks_ends_at_its_limit_and_names_silent_nodes() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        inquiry = nodes[0].query(Question("?"), to=[1, 2], limit_s=5)
        until(lambda: bool(nodes[1]._requests), *nodes)
        nodes[1].answer(nodes[1].requests()[0], Reply("here"))
        until(lambda: inquiry.done, *nodes)
        assert [member.node_rank for member in inquiry.answers] == [1]
        assert [member.node_rank for member in inquiry.silent] == [2]


def test_concurrent_requests_do_not_mix() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        inquiries = [nodes[0].query(Question(text), limit_s=LIMIT_S) for text in "ab"]
        until(lambda: len(nodes[1]._requests) == 2, *nodes)
        for request in nodes[1].requests():
            assert isinstance(request.body, Question)
            nodes[1].answer(request, Reply(request.body.text * 2))
        until(lambda: all(inquiry.done for inquiry in inquiries), *nodes)
        assert [list(inquiry.answers.values()) for inquiry in inquiries] == [[Reply("aa")], [Reply("bb")]]


def test_answers_are_forgotten_with_the_next_request() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        inquiry = nodes[0].query(Question("?"), limit_s=LIMIT_S)
        until(lambda: bool(nodes[1]._requests), *nodes)
        nodes[1].answer(nodes[1].requests()[0], Reply("here"))
        until(lambda: inquiry.done, *nodes)
        answered = weakref.ref(inquiry)
        nodes[0].step()
        inquiry = nodes[0].query(Question("and now?"), limit_s=LIMIT_S)
        assert answered() is None


def test_too_long_answer_is_refused_by_its_sender() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        nodes[0].query(Question("?"), limit_s=LIMIT_S)
        until(lambda: bool(nodes[1]._requests), *nodes)
        with pytest.raises(InvalidMessageError, match="expected at most"):
            nodes[1].answer(nodes[1].requests()[0], Reply("x" * 2**21))


def test_spares_wait_without_a_rank_until_one_is_assigned() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        spares = [rendezvous.joined(rank, spare=True) for rank in (2, 3)]
        assert [spare.membership.node_rank for spare in spares if spare.membership] == [None, None]
        with rendezvous.lock:
            lost = rendezvous.coordinator.membership.ranks[1]
            rendezvous.coordinator.remove(lost)
            chosen = rendezvous.coordinator.membership.spares[0]
            rendezvous.coordinator.assign(chosen, 1)
        until(lambda: spares[0].membership is not None and spares[0].membership.node_rank == 1, spares[0])
        assert nodes[0].membership is not None
        assert sorted(str(one.node_rank) for one in rendezvous.coordinator.members) == ["0", "1", "None"]


def test_occupied_rank_is_not_assigned_to_a_spare() -> None:
    with live(2) as rendezvous:
        rendezvous.joined(1)
        rendezvous.joined(2, spare=True)
        with rendezvous.lock, pytest.raises(ValueError, match="rank 1 is held"):
            rendezvous.coordinator.assign(rendezvous.coordinator.membership.spares[0], 1)


def test_only_nodes_of_the_start_count_as_started_also_after_rejoining() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        with rendezvous.lock:
            rendezvous.coordinator.start()
        until(lambda: all(node.started for node in nodes), *nodes)
        with rendezvous.lock:
            rendezvous.coordinator.remove(rendezvous.coordinator.membership.ranks[1])
        newcomer = rendezvous.joined(1, identity="another")
        nodes[2].close()
        again = rendezvous.joined(2)
        assert (newcomer.started, again.started) == (False, True)


def test_launcher_resumes_its_membership_with_its_session() -> None:
    with live(2) as rendezvous:
        session = NodeSession()
        first = rendezvous.joined(1, session=session)
        first.publish(Health(1))
        again = rendezvous.joined(1, session=session)
        assert again.membership == first.membership
        again.publish(Health(2))
        until(lambda: rendezvous.coordinator.values(Health) == {1: Health(2)}, again)
        assert rendezvous.warnings == []
        assert [change.kind for change in rendezvous.changes] == [ChangeKind.JOINED]


def test_broken_connection_is_resumed_without_loss() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        nodes[1].publish(Health(1))
        until(lambda: rendezvous.coordinator.values(Health) == {1: Health(1)}, *nodes)
        member = rendezvous.coordinator.membership.ranks[1]
        peer = rendezvous.coordinator._peers[member.number]
        for round_ in range(3):
            before = peer.join.connection
            assert peer.writer is not None
            event_loop().post(peer.writer.transport.abort)
            with rendezvous.lock:
                rendezvous.coordinator.publish(Bulletin(f"round {round_}"))
            nodes[1].publish(Health(round_))
            until(lambda: peer.join.connection > before, *nodes)  # noqa: B023
            expected = Bulletin(f"round {round_}")
            until(lambda: nodes[1].state(Bulletin) == expected, *nodes)  # noqa: B023
            until(lambda: rendezvous.coordinator.values(Health) == {1: Health(round_)}, *nodes)  # noqa: B023
        assert rendezvous.coordinator.membership.ranks[1] == member
        assert rendezvous.coordinator.closed_s(member) == 0.0
        assert rendezvous.warnings == []


@pytest.mark.parametrize("side", ["client", "server"])
def test_unexpected_exception_closes_one_connection_and_is_reported(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    def read_line(data: bytes, purpose: Purpose, expected: type[Message]) -> Message:
        if fails and (b"Health" in data or b"Bulletin" in data):
            fails.clear()
            raise ValueError("a fault of ours")
        return lines.read_line(data, purpose, expected)

    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        event_loop().problems()
        monkeypatch.setattr(f"platform_launch.rendezvous.{side}.read_line", read_line)
        node.publish(Health(7))
        until(lambda: rendezvous.coordinator.values(Health) == {1: Health(7)}, node)
        with rendezvous.lock:
            rendezvous.coordinator.publish(Bulletin("news"))
        until(lambda: node.state(Bulletin) == Bulletin("news"), node)
        assert not fails
        assert any("ValueError: a fault of ours" in one for one in event_loop().problems())


def test_request_during_a_broken_connection_arrives_afterwards() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        peer = rendezvous.coordinator._peers[rendezvous.coordinator.membership.ranks[1].number]
        client = nodes[1]._client
        assert client is not None
        client.hold(True)
        assert peer.writer is not None
        event_loop().post(peer.writer.transport.abort)
        until(lambda: peer.writer is None, *nodes)
        inquiry = nodes[0].query(Question("?"), limit_s=LIMIT_S)
        until(lambda: inquiry.recipients is not None, nodes[0])
        client.hold(False)
        until(lambda: bool(nodes[1]._requests), *nodes)
        nodes[1].answer(nodes[1].requests()[0], Reply("here"))
        until(lambda: inquiry.done, *nodes)
        assert list(inquiry.answers.values()) == [Reply("here")]


def test_launcher_that_does_not_resume_a_closed_connection_is_gone() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        member = rendezvous.coordinator.membership.ranks[1]
        assert rendezvous.coordinator.closed_s(member) == 0.0
        node.close()
        until(lambda: rendezvous.coordinator.ended_s(member) > 0.2)
        assert not rendezvous.coordinator.has_left(member)


def test_reset_connection_does_not_count_as_closed_by_the_node() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        client = node._client
        assert client is not None
        client.hold(True)  # it does not come back
        event_loop().post(reset, client._opened.writer)
        member = rendezvous.coordinator.membership.ranks[1]
        until(lambda: rendezvous.coordinator.closed_s(member) > 0.2)
        assert not rendezvous.coordinator.ended_s(member)


def test_node_detects_that_its_coordinator_was_replaced() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        rendezvous.coordinator._server._welcome = type(rendezvous.coordinator.welcome)(
            **{**vars(rendezvous.coordinator.welcome), "round": "another"}
        )
        peer = rendezvous.coordinator._peers[rendezvous.coordinator.membership.ranks[1].number]
        assert peer.writer is not None
        event_loop().post(peer.writer.transport.abort)
        with pytest.raises(CoordinatorReplacedError):
            until(lambda: False, node)


def test_clocks_are_compared_by_round_trips() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        member = rendezvous.coordinator.membership.ranks[1]
        until(lambda: rendezvous.coordinator.clock_of(member) is not None, node)
        offset_s, error_s = rendezvous.coordinator.clock_of(member) or (1.0, 0.0)
        assert abs(offset_s) <= error_s  # it is one clock


def test_newcomer_is_rejected_while_the_known_node_is_alive() -> None:
    with live(2) as rendezvous:
        known = rendezvous.joined(1)
        newcomer = rendezvous.participant(1, identity="another", host="elsewhere")
        newcomer.join()
        with pytest.raises(RejectedError, match=r"two nodes have rank 1: gpu-1 .* and elsewhere") as no:
            until(lambda: False, known, newcomer)
        assert no.value.rejection.kind is RejectionKind.RANK_TAKEN
        known.step()
        assert rendezvous.coordinator.membership.ranks[1].node.host == "gpu-1"
        assert len(rendezvous.warnings) == 1


def test_newcomer_replaces_a_silent_node() -> None:
    with live(2) as rendezvous:
        rendezvous.coordinator.membership.replaced_after_s = 1.0
        silent = rendezvous.joined(1)
        assert silent._client is not None
        silent._client.hold(True)
        newcomer = rendezvous.participant(1, identity="another", host="elsewhere")
        newcomer.join()
        until(lambda: newcomer.membership is not None, newcomer)
        assert rendezvous.changes[-1].kind is ChangeKind.REPLACED
        assert rendezvous.warnings == []
        with pytest.raises(RejectedError, match="was given to elsewhere"):
            until(lambda: False, silent)


def test_newcomer_replaces_a_node_that_left_immediately() -> None:
    with live(2) as rendezvous:
        rendezvous.joined(1).leave()
        newcomer = rendezvous.joined(1, identity="another")
        assert newcomer.membership is not None
        assert rendezvous.coordinator.membership.ranks[1].node.identity == "another"


def test_nodes_may_join_and_leave_repeatedly() -> None:
    with live(2) as rendezvous:
        for life in range(40):
            rendezvous.joined(1, identity=f"life {life}").leave()
        assert rendezvous.warnings == []
        until(lambda: len(rendezvous.coordinator._peers) <= 1)


def test_silent_member_keeps_its_rank() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        assert node._client is not None
        member = rendezvous.coordinator.membership.ranks[1]
        node._client.hold(True)
        until(lambda: rendezvous.coordinator.silent_s(member) >= 1.0)
        assert rendezvous.coordinator.is_stopped(member)  # its kernel acknowledges what it does not read
        node._client.hold(False)
        until(lambda: rendezvous.coordinator.silent_s(member) < 0.5, node)
        assert rendezvous.coordinator.membership.ranks[1] == member


def test_stopped_coordinator_is_detected_although_its_connections_are_open() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        rendezvous.halted.set()
        until(lambda: node.coordinator_silent_s >= 1.0, node)
        rendezvous.halted.clear()
        until(lambda: node.coordinator_silent_s < 0.5, node)


def test_node_with_another_purpose_is_rejected() -> None:
    with (
        live(2) as rendezvous,
        pytest.raises(RejectedError, match=r"belongs to dinner, but node 0 .* waits for test"),
    ):
        rendezvous.participant(1, purpose=Purpose("dinner", ()))


def test_rank_out_of_range_is_rejected() -> None:
    with live(2) as rendezvous:
        for rank, said in ((5, "is node 5 of"), (-1, "is node -1 of")):
            node = rendezvous.participant(rank)
            node.join()
            with pytest.raises(RejectedError, match=said):
                until(lambda: False, node)
        assert rendezvous.coordinator.membership.everyone == []


@pytest.mark.parametrize(("job_id", "mark"), [("job-8", ""), ("job-7", "another")])
def test_node_of_another_job_is_rejected_immediately(job_id: str, mark: str) -> None:
    with live(2) as rendezvous:
        opened = rendezvous.opened(1, secret=None, job_id=job_id, mark=mark)
        with pytest.raises(RejectedError) as no:
            Participant(opened, fingerprint(1, job_id=job_id), purpose=PURPOSE)
        assert no.value.rejection.kind is RejectionKind.OTHER_JOB
        assert rendezvous.coordinator.membership.everyone == []
        assert rendezvous.warnings == []


def test_port_that_never_answers_is_abandoned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hello = hello_of(fingerprint(1), PURPOSE, None, "")
        found = event_loop().call(open_one("127.0.0.1", mute.getsockname()[1], hello, None), LIMIT_S)
        assert isinstance(found, Unopened)
        assert found.answer == "no answer within the limit"


def test_hundreds_of_nodes_that_connect_while_the_loop_is_blocked_are_welcomed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many nodes reconnect at once. With a short backlog, and a server that sends first, most would hang."""
    # One loop serves both sides here: on a busy machine it needs longer for all than a node waits for one.
    monkeypatch.setattr(client, "CONNECT_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(server, "_JOIN_LIMIT_S", LIMIT_S)
    with live(600) as rendezvous:
        event_loop().post(time.sleep, 1.0)
        hellos = [hello_of(fingerprint(rank, 600), PURPOSE, None, "") for rank in range(600)]

        async def come() -> list[Opened | Unopened]:
            return await asyncio.gather(
                *(open_one("127.0.0.1", rendezvous.port, hello, None) for hello in hellos)
            )

        opened = event_loop().call(come(), LIMIT_S)
        assert all(isinstance(one, Opened) for one in opened)
        nodes = [
            Participant(one, fingerprint(rank, 600), purpose=PURPOSE)
            for rank, one in enumerate(opened)
            if isinstance(one, Opened)
        ]
        rendezvous.nodes += nodes
        for node in nodes:
            node.join()
        until(lambda: len(rendezvous.coordinator.membership.ranks) == 600)
        until(lambda: all(node.membership is not None for node in nodes), *nodes)


def test_lost_node_that_responds_again_keeps_its_rank() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        with rendezvous.lock:
            rendezvous.coordinator.remove(rendezvous.coordinator.membership.ranks[1])
        until(lambda: 1 in rendezvous.coordinator.membership.ranks, node)
        node.publish(Health(1))
        until(lambda: rendezvous.coordinator.values(Health) == {1: Health(1)}, node)
        assert rendezvous.warnings == []


def test_concurrent_threads_share_one_event_loop() -> None:
    code = (
        "import sys; sys.setswitchinterval(1e-6)\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from threading import Barrier\n"
        "from platform_launch.rendezvous.loop import event_loop\n"
        "together = Barrier(16)\n"
        "with ThreadPoolExecutor(16) as pool:\n"
        "    print(len(set(pool.map(lambda _: (together.wait(), event_loop())[1], range(16)))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
