"""Strangers who reach the port: what they write is turned away with one warning and ends nothing."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from platform_launch.rendezvous.authentication import Seal, Secret
from platform_launch.rendezvous.handshake import RejectedError
from platform_launch.rendezvous.membership import ChangeKind
from platform_launch.rendezvous.messages import InvalidMessageError, encode
from platform_launch.rendezvous.participant import Participant
from platform_launch.rendezvous.protocol import Join, NodeHeartbeat, RejectionKind
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.store import StoreError
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import PURPOSE, Bulletin, Health, Live, Question, Reply, live, until
from tests.rendezvous.nodes import fingerprint

SECRET = Secret("a secret of thirty-two characters")
TORCH_MAGIC = 0x3C85F7CE


@pytest.fixture(params=[None, SECRET], ids=["open", "sealed"])
def rendezvous(request: pytest.FixtureRequest) -> Iterator[Live]:
    with live(2, secret=request.param) as made:
        yield made


def assert_works(rendezvous: Live, node: Participant) -> None:
    """The node is still a member, and hears and is heard."""
    before = rendezvous.coordinator.membership.ranks[1]
    with rendezvous.lock:
        rendezvous.coordinator.publish(Bulletin(os.urandom(4).hex()))
        news = rendezvous.store.read(["state"])[0]
    node.publish(Health(30))
    until(lambda: rendezvous.coordinator.values(Health) == {1: Health(30)}, node)
    until(lambda: node._seal.close("state", node._state or Health(0)) == news, node)
    assert rendezvous.coordinator.membership.ranks[1] == before
    assert rendezvous.coordinator.silent_s(before) < 5


JUNK = [
    b"",
    b"junk",
    b"- junk",
    b"- [" + b"[" * 50_000,
    b'- ["Join", {}]',
    b'- ["Join",{"node":["Fingerprint",{"node_rank":[],"nnodes":2}],"session":"x"}]',
    b'- ["NodeHeartbeat",{"session":"x","count":"many","written":0}]',
    b'- ["NodeHeartbeat",{"session":"x","count":1e400,"written":0}]',
    b'- ["System",{}]',
    b"- null",
    b"- " + b"9" * 5000,
]


@pytest.mark.parametrize("key", ["join/1", "heartbeat/1", "join/7", "heartbeat/7", "notice/1"])
def test_junk_at_any_place_ends_nothing(rendezvous: Live, key: str) -> None:
    node = rendezvous.joined(1)
    stranger = rendezvous.connect()
    for junk in JUNK:
        stranger.write(key, junk)
        if junk and key.startswith("heartbeat"):
            until(lambda: stranger.read([key]) != [junk], node)  # noqa: B023 - read at once
    assert_works(rendezvous, node)
    assert len(rendezvous.warnings) <= 1


def test_a_rank_that_is_a_list_is_no_message() -> None:
    entry = encode(Join(fingerprint(1), "session")).replace(b'"node_rank":1', b'"node_rank":[]')
    with pytest.raises(
        InvalidMessageError, match=r"Fingerprint.node_rank: expected a whole number, found \[\]"
    ):
        Seal(None, "test", "").open("join/1", b"- " + entry, Join)


def test_megabytes_are_refused_before_they_are_parsed(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    head, tail = b'- ["NodeHeartbeat",{"session":"', b'","count":1,"written":0}]'
    with pytest.raises(StoreError):  # more than 8 MB is refused by torch itself
        rendezvous.connect().write("heartbeat/9", head + b"x" * 10_000_000 + tail)
    stranger = rendezvous.connect()
    for key in ("heartbeat/1", "heartbeat/9", "requests/1", "value/Health/1"):
        stranger.write(key, head + b"x" * 5_000_000 + tail)
    until(lambda: stranger.read(["heartbeat/9"]) == [b""], node)
    assert_works(rendezvous, node)
    assert any(
        "expected a NodeHeartbeat of at most 65536 bytes, found 5000" in text for text in rendezvous.warnings
    )


def test_what_a_stranger_deletes_or_overwrites_is_written_again(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    with rendezvous.lock:
        rendezvous.coordinator.publish(Bulletin("news"))
    stranger = rendezvous.connect()
    keys = ["announcement", "now", "state", "members", "requests", "join/1", "heartbeat/1", "notice/1"]
    for vandalism in ("delete", "overwrite"):
        for key in keys:
            if vandalism == "delete":
                stranger.delete([key])
            else:
                stranger.write(key, b"gone")
        until(lambda: stranger.read(["announcement"])[0] not in (None, b"gone"), node)
        assert_works(rendezvous, node)
        rendezvous.joined(0).leave()  # whoever comes now finds a rendezvous in order


def test_a_node_whose_entry_is_taken_away_before_it_is_read_writes_it_again(rendezvous: Live) -> None:
    stranger = rendezvous.connect()
    rendezvous.halted.set()
    node = rendezvous.participant(1)
    node.join()
    stranger.write("join/1", b"")
    rendezvous.halted.clear()
    until(lambda: node.seat is not None, node)


def test_random_bytes_on_the_port_end_nothing(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    for size in (1, 7, 100, 10_000):
        for start in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes([0]) + struct.pack("<I", TORCH_MAGIC)):
            with socket.create_connection(("127.0.0.1", rendezvous.store.port)) as stranger:
                stranger.sendall(start + os.urandom(size))
    assert_works(rendezvous, node)


def test_escape_sequences_of_other_nodes_are_shown_and_not_obeyed(rendezvous: Live) -> None:
    name = "gpu\x1b]0;owned\x07\x1b[2J\r\n[node 0] [SUCCESS] all is well\u202e\x9b31m"
    node = rendezvous.participant(1, job_id="job-8\x1b[31m", host=name)
    node.join()
    with pytest.raises(RejectedError) as no:
        until(lambda: False, node)
    for text in (str(no.value), *rendezvous.warnings):
        assert text.isprintable()
    assert r"gpu\x1b]0;owned\x07\x1b[2J\r\n[node 0]" in rendezvous.warnings[0]


def test_a_second_launcher_of_a_rank_ends_nothing_however_often_it_comes(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    for _ in range(3):
        second = rendezvous.participant(1, identity=os.urandom(4).hex(), host="elsewhere")
        second.join()
        with pytest.raises(RejectedError, match="two nodes say they are node 1"):
            until(lambda: False, node, second)
        second.leave()
    assert_works(rendezvous, node)
    assert len(rendezvous.warnings) == 1


def test_a_stranger_cannot_live_on_after_a_node_has_died() -> None:
    """Its last heartbeats, shown again by somebody who has read them."""
    with live(2, secret=SECRET) as rendezvous:
        node = rendezvous.joined(1)
        stranger = rendezvous.connect()
        old = []
        for _ in range(4):
            node.heartbeat()
            old.append(stranger.read(["heartbeat/1"])[0] or b"")
        member = rendezvous.coordinator.membership.ranks[1]

        def show_again() -> bool:
            stranger.write("heartbeat/1", old[len(old) % 3])
            old.append(b"")
            return rendezvous.coordinator.silent_s(member) >= 1.5

        until(show_again)


def test_the_hello_of_an_earlier_start_says_nothing_in_this_one() -> None:
    """The image was mended meanwhile; somebody has read what a node of the old one left in the store."""
    with live(2, secret=SECRET) as earlier:
        with pytest.raises(RejectedError):
            earlier.participant(1, purpose=Purpose(PURPOSE.name, ())).join()
        told = earlier.connect().read(["heartbeat/1"])[0] or b""
        until(lambda: any("do not understand each other" in text for text in earlier.warnings))
    with live(2, secret=SECRET) as rendezvous:
        stranger = rendezvous.connect()
        stranger.write("heartbeat/1", told)
        until(lambda: bool(rendezvous.changes) or stranger.read(["heartbeat/1"]) == [b""])
        kinds = [change.rejection.kind for change in rendezvous.changes if change.rejection is not None]
        assert RejectionKind.OTHER_PROTOCOL not in kinds
        assert rendezvous.joined(1).seat is not None


FORGED = {
    "no_secret": Seal(None, "test", ""),
    "other_secret": Seal(Secret("another secret, as long"), "test", ""),
    "other_purpose": Seal(SECRET, "dist-launch", ""),
    "other_round": Seal(SECRET, "test", "the nonce of another round"),
}


@pytest.mark.parametrize("forger", FORGED)
def test_with_a_secret_nothing_forged_is_believed(forger: str) -> None:
    with live(2, secret=SECRET) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        until(lambda: len(nodes[0].members) == 2, *nodes)
        stranger = rendezvous.connect()
        seal = FORGED[forger]
        if forger != "other_round":
            seal = Seal(seal.secret, seal.purpose, rendezvous.coordinator.announcement.nonce)
        stranger.write("value/Health/1", seal.close("value/Health/1", Health(99)))
        stranger.write("state", seal.close("state", Bulletin("forged: end all")))
        nodes[1]._announce_written()  # node 0 looks at what node 1 has written
        until(lambda: bool(rendezvous.warnings), *nodes)
        assert rendezvous.coordinator.values(Health) == {}
        assert nodes[0].value_of(1, Health) is None
        assert nodes[0].state(Bulletin) is None
        stranger.write("heartbeat/1", seal.close("heartbeat/1", NodeHeartbeat("x", 10**9, 10**9, left=True)))
        until(lambda: stranger.read(["heartbeat/1"])[0] != b"", *nodes)
        assert_works(rendezvous, nodes[1])
        assert not rendezvous.coordinator.has_left(rendezvous.coordinator.membership.ranks[1])


def test_an_entry_is_not_believed_under_another_key() -> None:
    with live(2, secret=SECRET) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        until(lambda: len(nodes[0].members) == 2, *nodes)
        nodes[0].publish(Health(1))
        stranger = rendezvous.connect()
        stranger.write("value/Health/1", stranger.read(["value/Health/0"])[0] or b"")
        assert nodes[0].value_of(0, Health) == Health(1)
        assert nodes[0].value_of(1, Health) is None


def test_a_request_or_an_answer_that_is_forged_is_not_heard() -> None:
    with live(2, secret=SECRET) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(2)]
        until(lambda: len(nodes[0].members) == 2, *nodes)
        inquiry = nodes[0].ask(Question("?"), limit_s=LIMIT_S)
        until(lambda: bool(nodes[1]._open), *nodes)
        (request,) = nodes[1].requests()
        key = request.answer_key(1)
        stranger = rendezvous.connect()
        stranger.write(key, Seal(None, "test", "").close(key, Reply("forged")))
        for node in nodes * 3:
            node.heartbeat()
        assert inquiry.answers == {}
        nodes[1].answer(request, Reply("true"))
        until(lambda: inquiry.done, *nodes)
        assert list(inquiry.answers.values()) == [Reply("true")]


@pytest.mark.parametrize(
    ("ours", "theirs", "kind", "said"),
    [
        (
            SECRET,
            None,
            RejectionKind.NO_SECRET,
            r"node 1 \(gn7 .*\) has no PLATFORM_LAUNCH_SECRET, node 0 .* one",
        ),
        (
            SECRET,
            Secret("another secret, as long"),
            RejectionKind.OTHER_SECRET,
            r"node 1 \(gn7 .*\) has another PLATFORM_LAUNCH_SECRET than node 0",
        ),
        (
            None,
            SECRET,
            RejectionKind.COORDINATOR_WITHOUT_SECRET,
            r"node 0 \(gpu-0 .*\) has no PLATFORM_LAUNCH_SECRET, node 1 \(gn7 .*\) has one",
        ),
    ],
)
def test_a_node_without_the_secret_of_the_job_is_told_so_by_name(
    ours: Secret | None, theirs: Secret | None, kind: RejectionKind, said: str
) -> None:
    with live(2, secret=ours) as rendezvous:
        node = rendezvous.participant(1, secret=theirs, host="gn7")
        with pytest.raises(RejectedError, match=said) as no:  # noqa: PT012 - one of the two raises
            node.join()
            until(lambda: False, node)
        assert no.value.rejection.kind is kind
        if ours is not None:
            until(lambda: bool(rendezvous.warnings))
            assert "node 1 (gn7 (10.0.0.1)) has" in rendezvous.warnings[0]
            assert all(change.kind is ChangeKind.REJECTED for change in rendezvous.changes)
            assert rendezvous.coordinator.membership.everyone == []
        node.leave()
        again = rendezvous.joined(1, host="gn7")
        assert again.seat is not None


def test_the_secret_lies_nowhere_in_the_store(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    node.publish(Health(1))
    keys = ["announcement", "now", "members", "join/1", "heartbeat/1", "notice/1", "value/Health/1"]
    stored = b"".join(data or b"" for data in rendezvous.connect().read(keys))
    assert SECRET.reveal().encode() not in stored
    assert SECRET.reveal() not in repr(rendezvous.coordinator._seal)
