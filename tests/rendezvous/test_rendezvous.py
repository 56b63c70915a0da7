"""What a rendezvous offers to every purpose, over a real TCPStore."""

from __future__ import annotations

import socket
import weakref
from typing import cast

import pytest

from platform_launch.rendezvous.handshake import Handshake, NoRendezvousError, RejectedError
from platform_launch.rendezvous.membership import ChangeKind
from platform_launch.rendezvous.messages import InvalidMessageError
from platform_launch.rendezvous.protocol import RejectionKind
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.store import Store, StoreSilentError
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import PURPOSE, Bulletin, Health, Question, Reply, live, until
from tests.rendezvous.nodes import fingerprint


def test_all_hear_what_the_coordinator_publishes() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        for text in ("first", "second"):
            with rendezvous.lock:
                rendezvous.coordinator.publish(Bulletin(text))
            until(lambda: all(node.state(Bulletin) == Bulletin(text) for node in nodes), *nodes)  # noqa: B023
        until(lambda: all(len(node.members) == 3 for node in nodes), *nodes)


def test_what_is_published_is_heard_without_another_look_of_the_coordinator() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        rendezvous.halted.set()
        with rendezvous.lock:
            rendezvous.coordinator.publish(Bulletin("at once"))
        until(lambda: node.state(Bulletin) == Bulletin("at once"), node)
        rendezvous.halted.clear()


def test_values_that_nodes_refresh_are_read_by_all() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        until(lambda: len(nodes[0].members) == 2, *nodes)
        for temperature in (40, 70):
            nodes[1].publish(Health(temperature))
            assert nodes[0].value_of(1, Health) == Health(temperature)
            expected = {1: Health(temperature)}
            until(lambda: rendezvous.coordinator.values(Health) == expected, *nodes)  # noqa: B023
        assert {seat.node_rank: value for seat, value in nodes[0].values(Health).items()} == {1: Health(70)}


def test_a_request_of_any_node_collects_the_answers_of_all_others() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        inquiry = nodes[2].ask(Question("what are you doing?"), limit_s=LIMIT_S)
        until(lambda: all(node._open for node in nodes[:2]), *nodes)
        for rank, node in enumerate(nodes[:2]):
            (request,) = node.requests()
            assert request.body == Question("what are you doing?")
            assert node.requests() == []
            node.answer(request, Reply(f"node {rank} sleeps"))
        until(lambda: inquiry.done, *nodes)
        answers = {seat.node_rank: answer for seat, answer in inquiry.answers.items()}
        assert answers == {0: Reply("node 0 sleeps"), 1: Reply("node 1 sleeps")}


def test_a_request_of_some_ranks_ends_at_its_limit_and_names_who_is_silent() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        inquiry = nodes[0].ask(Question("?"), to=[1, 2], limit_s=5)
        until(lambda: bool(nodes[1]._open), *nodes)
        nodes[1].answer(nodes[1].requests()[0], Reply("here"))
        until(lambda: inquiry.done, *nodes)
        assert [seat.node_rank for seat in inquiry.answers] == [1]
        assert [seat.node_rank for seat in inquiry.silent] == [2]
        until(lambda: not nodes[2]._open, *nodes)  # nobody is asked what nobody waits for


def test_two_requests_at_a_time_do_not_mix() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        inquiries = [nodes[0].ask(Question(text), limit_s=LIMIT_S) for text in "ab"]
        until(lambda: len(nodes[1]._open) == 2, *nodes)
        for request in nodes[1].requests():
            assert isinstance(request.body, Question)
            nodes[1].answer(request, Reply(request.body.text * 2))
        until(lambda: all(inquiry.done for inquiry in inquiries), *nodes)
        assert [list(inquiry.answers.values()) for inquiry in inquiries] == [[Reply("aa")], [Reply("bb")]]


def test_what_was_answered_is_forgotten_with_the_next_request() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        inquiry = nodes[0].ask(Question("?"), limit_s=LIMIT_S)
        until(lambda: bool(nodes[1]._open), *nodes)
        nodes[1].answer(nodes[1].requests()[0], Reply("here"))
        until(lambda: inquiry.done, *nodes)
        answered = weakref.ref(inquiry)
        inquiry = nodes[0].ask(Question("and now?"), limit_s=LIMIT_S)
        assert answered() is None


def test_an_answer_that_is_too_long_is_refused_where_it_is_given() -> None:
    with live(2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        nodes[0].ask(Question("?"), limit_s=LIMIT_S)
        until(lambda: bool(nodes[1]._open), *nodes)
        with pytest.raises(InvalidMessageError, match="expected at most"):
            nodes[1].answer(nodes[1].requests()[0], Reply("x" * 2**21))


def test_spares_wait_without_a_rank_and_are_given_one() -> None:
    with live(2, spares=2) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        spares = [rendezvous.joined(rank, spare=True) for rank in (2, 3)]
        assert [spare.seat.node_rank for spare in spares if spare.seat] == [None, None]
        with rendezvous.lock:
            lost = rendezvous.coordinator.membership.ranks[1]
            rendezvous.coordinator.remove(lost)
            chosen = rendezvous.coordinator.membership.spares[0]
            rendezvous.coordinator.assign(chosen, 1)
        until(lambda: spares[0].seat is not None and spares[0].seat.node_rank == 1, spares[0])
        until(lambda: len(nodes[0].members) == 3, nodes[0])
        assert sorted(str(seat.node_rank) for seat in nodes[0].members) == ["0", "1", "None"]
        again = rendezvous.joined(2, spare=True)  # its connection was lost: it keeps what it was given
        assert again.seat is not None
        assert again.seat.node_rank == 1


def test_a_rank_that_is_held_is_not_given_to_a_spare() -> None:
    with live(2, spares=1) as rendezvous:
        rendezvous.joined(1)
        rendezvous.joined(2, spare=True)
        with rendezvous.lock, pytest.raises(ValueError, match="rank 1 is held"):
            rendezvous.coordinator.assign(rendezvous.coordinator.membership.spares[0], 1)


def test_only_who_began_with_the_others_has_started_also_when_it_comes_again() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        with rendezvous.lock:
            rendezvous.coordinator.start()
        until(lambda: all(node.started for node in nodes), *nodes)
        with rendezvous.lock:
            rendezvous.coordinator.remove(rendezvous.coordinator.membership.ranks[1])
        newcomer = rendezvous.joined(1, identity="another")
        again = rendezvous.joined(2)
        assert (newcomer.started, again.started) == (False, True)


def test_what_a_node_asks_of_the_store_does_not_grow_with_the_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[list[str], int]] = []

    def read(store: Store, keys: list[str]) -> list[bytes | None]:
        found = unchanged(store, keys)
        asked.append((keys, sum(len(data or b"") for data in found)))
        return found

    unchanged = Store._read
    counts = []
    for nnodes in (3, 30):
        with live(nnodes) as rendezvous:
            others = [rendezvous.joined(rank) for rank in range(1, nnodes)]
            node = rendezvous.joined(0)
            with rendezvous.lock, monkeypatch.context() as patch:
                patch.setattr(Store, "_read", read)
                asked.clear()
                inquiry = others[0].ask(Question("?"), limit_s=LIMIT_S)
                rendezvous.coordinator.step()
                of_node_0 = len(asked)
                node.heartbeat()
                node.value_of(0, Health)
                counts.append((len(asked) - of_node_0, sum(size for _, size in asked[of_node_0:]) // 100))
            until(lambda: inquiry.recipients is not None, others[0])  # noqa: B023
            assert len(inquiry.recipients or ()) == nnodes - 1
    assert counts[0] == counts[1]


def test_a_launcher_that_comes_again_takes_its_own_place() -> None:
    with live(2) as rendezvous:
        first = rendezvous.joined(1)
        for _ in range(5):
            first.heartbeat()
        again = rendezvous.joined(1)
        assert again.seat == first.seat
        until(lambda: len(rendezvous.changes) == 2, again)
        assert rendezvous.warnings == []
        assert [change.kind for change in rendezvous.changes] == [ChangeKind.JOINED, ChangeKind.RETURNED]
        again.publish(Health(1))
        until(lambda: rendezvous.coordinator.values(Health) == {1: Health(1)}, again)


def test_a_newcomer_is_turned_away_while_the_known_node_lives() -> None:
    with live(2) as rendezvous:
        known = rendezvous.joined(1)
        newcomer = rendezvous.participant(1, identity="another", host="elsewhere")
        newcomer.join()
        with pytest.raises(
            RejectedError, match=r"two nodes say they are node 1: gpu-1 .* and elsewhere"
        ) as no:
            until(lambda: False, known, newcomer)
        assert no.value.rejection.kind is RejectionKind.RANK_TAKEN
        known.heartbeat()
        assert rendezvous.coordinator.membership.ranks[1].node.host == "gpu-1"
        assert len(rendezvous.warnings) == 1


def test_a_newcomer_takes_the_place_of_one_that_is_silent() -> None:
    with live(2) as rendezvous:
        rendezvous.coordinator.membership.replaced_after_s = 1.0
        silent = rendezvous.joined(1)
        newcomer = rendezvous.participant(1, identity="another", host="elsewhere")
        newcomer.join()
        until(lambda: newcomer.seat is not None, newcomer)
        assert rendezvous.changes[-1].kind is ChangeKind.REPLACED
        assert rendezvous.warnings == []
        with pytest.raises(RejectedError, match="was given to elsewhere"):
            until(lambda: False, silent)


def test_a_newcomer_takes_the_place_of_one_that_left_at_once() -> None:
    with live(2) as rendezvous:
        rendezvous.joined(1).leave()
        newcomer = rendezvous.joined(1, identity="another")
        assert newcomer.seat is not None
        assert rendezvous.coordinator.membership.ranks[1].node.identity == "another"


def test_nodes_may_come_and_go_more_often_than_there_are_slots() -> None:
    with live(2) as rendezvous:
        slots = rendezvous.coordinator.announcement.slots
        for life in range(slots + 5):
            node = rendezvous.joined(1, identity=f"life {life}")
            node.leave()
            node._store.close()
        assert rendezvous.warnings == []


def test_silence_is_measured_and_a_member_keeps_its_place() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        member = rendezvous.coordinator.membership.ranks[1]
        until(lambda: rendezvous.coordinator.silent_s(member) >= 1.0)
        until(lambda: rendezvous.coordinator.silent_s(member) < 0.5, node)
        assert rendezvous.coordinator.membership.ranks[1] == member


def test_a_coordinator_that_stands_still_is_seen_although_its_store_answers() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        rendezvous.halted.set()
        until(lambda: node.coordinator_silent_s >= 1.0, node)
        rendezvous.halted.clear()
        until(lambda: node.coordinator_silent_s < 0.5, node)


def test_another_purpose_is_told_so() -> None:
    with (
        live(2) as rendezvous,
        pytest.raises(RejectedError, match=r"came for dinner, but node 0 .* waits for test"),
    ):
        rendezvous.participant(1, purpose=Purpose("dinner", ()))


def test_another_job_and_a_rank_out_of_range_are_turned_away() -> None:
    with live(2) as rendezvous:
        for rank, job_id, said in (
            (1, "job-8", "belongs to job 'job-8'"),
            (5, None, "says it is node 5"),
            (-1, None, "says it is node -1"),
        ):
            node = rendezvous.participant(rank, job_id=job_id)
            node.join()
            with pytest.raises(RejectedError, match=said):
                until(lambda: False, node)
        assert rendezvous.coordinator.membership.everyone == []


def test_a_rendezvous_that_opens_this_moment_is_none_yet_and_of_no_other_version() -> None:
    with live(2) as cluster:
        opened = cluster.connect()

        class Opening:
            """A store reads key by key where one is missing: node 0 writes all after the first question."""

            def read(self, keys: list[str]) -> list[bytes | None]:
                return [None, *opened.read(keys[1:])]

        with pytest.raises(NoRendezvousError):
            Handshake(cast("Store", Opening()), fingerprint(1, 2), PURPOSE, None)


def test_a_mute_store_is_given_up() -> None:
    """A store that takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(StoreSilentError):
        Store.connect("127.0.0.1", mute.getsockname()[1], limit_s=1.0)


@pytest.mark.parametrize("slot", ["kept", "freed"])
def test_a_node_that_was_given_up_and_is_heard_again_has_its_place_back(slot: str) -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        until(lambda: len(node.members) == 1, node)
        with rendezvous.lock:
            rendezvous.coordinator.remove(rendezvous.coordinator.membership.ranks[1])
            if slot == "freed":
                rendezvous.coordinator._forget(float("inf"))
        until(lambda: 1 in rendezvous.coordinator.membership.ranks, node)
        node.publish(Health(1))
        until(lambda: rendezvous.coordinator.values(Health) == {1: Health(1)}, node)
        assert rendezvous.warnings == []
