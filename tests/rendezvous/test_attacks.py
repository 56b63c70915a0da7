"""Strangers who reach the port: what they send is rejected with one warning and stops nothing."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.lines import Seal
from platform_launch.rendezvous.membership import ChangeKind
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.participant import Participant, RejectedError, hello_of
from platform_launch.rendezvous.protocol import Beat, Join, JoinNotice, Publish, RejectionKind, Welcome
from platform_launch.rendezvous.purpose import Purpose
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import PURPOSE, Bulletin, Health, Live, Question, Reply, live, until
from tests.rendezvous.nodes import fingerprint

SECRET = Secret("a secret of thirty-two characters")


@pytest.fixture(params=[None, SECRET], ids=["open", "sealed"])
def rendezvous(request: pytest.FixtureRequest) -> Iterator[Live]:
    with live(2, secret=request.param) as made:
        yield made


def assert_works(rendezvous: Live, node: Participant) -> None:
    """Assert that the node is still a member, and receives and sends messages."""
    before = rendezvous.coordinator.membership.ranks[1]
    news = Bulletin(os.urandom(4).hex())
    with rendezvous.lock:
        rendezvous.coordinator.publish(news)
    node.publish(Health(30))
    until(lambda: rendezvous.coordinator.values(Health) == {1: Health(30)}, node)
    until(lambda: node.state(Bulletin) == news, node)
    assert rendezvous.coordinator.membership.ranks[1] == before
    assert rendezvous.coordinator.silent_s(before) < 5


class Stranger:
    """Follows the protocol until the secret is needed, and then sends anything."""

    def __init__(self, rendezvous: Live, secret: Secret | None = None, *, rank: int = 1) -> None:
        self._socket = socket.create_connection(("127.0.0.1", rendezvous.port), LIMIT_S)
        self._file = self._socket.makefile("rb")
        hello = replace(
            hello_of(fingerprint(rank), PURPOSE, secret or SECRET, ""), nonce=os.urandom(16).hex()
        )
        if rendezvous.secret is None:
            hello = replace(hello, sealed=False)
        self.send(encode(hello))
        self.welcome = decode(self._file.readline().rstrip(), Welcome)
        self.seal = Seal(secret, encode(hello), self.welcome, node=True)

    def send(self, line: bytes) -> None:
        with suppress(OSError):  # turned away meanwhile
            self._socket.sendall(line + b"\n")

    def say(self, message: Message) -> None:
        self.send(self.seal.close(encode(message)).rstrip())

    def heard(self) -> list[bytes]:
        """Return all lines until the other side closes the connection."""
        with suppress(OSError):
            return self._file.readlines()
        return []

    def close(self) -> None:
        self._file.close()
        self._socket.close()


JUNK = [
    b"",
    b"junk",
    b"\x00\x01\x02",
    b"GET / HTTP/1.1",
    b"[" * 50_000,
    b'["Hello",' + b"x" * 2000,
    b'["Hello",{"protocol":',
    b'["Hello",{}]',
    b'["Join",{}]',
    b"null",
    b"9" * 5000,
    struct.pack("<I", 0x3C85F7CE),
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_junk_as_the_first_line_ends_nothing(rendezvous: Live, junk: bytes) -> None:
    node = rendezvous.joined(1)
    with socket.create_connection(("127.0.0.1", rendezvous.port), LIMIT_S) as stranger:
        stranger.sendall(junk + b"\n")
        stranger.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            assert stranger.recv(1) == b""
    assert_works(rendezvous, node)
    assert len(rendezvous.warnings) <= 1


@pytest.mark.parametrize(
    "junk",
    [b"- junk", b"- [" + b"[" * 50_000, b'- ["Join",{}]', b'- ["System",{}]', b"- null", b"x" * 100_000],
)
def test_junk_instead_of_a_join_ends_nothing(rendezvous: Live, junk: bytes) -> None:
    node = rendezvous.joined(1)
    stranger = Stranger(rendezvous)
    stranger.send(junk)
    assert stranger.heard() == []
    stranger.close()
    assert_works(rendezvous, node)
    assert len(rendezvous.warnings) <= 1


def test_silent_connection_is_closed(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    with socket.create_connection(("127.0.0.1", rendezvous.port), LIMIT_S) as mute:
        assert mute.recv(1) == b""
    assert_works(rendezvous, node)


def test_open_connections_of_strangers_do_not_block_nodes(rendezvous: Live) -> None:
    held = [socket.create_connection(("127.0.0.1", rendezvous.port), LIMIT_S) for _ in range(400)]

    def joined() -> bool:
        with suppress(AssertionError):  # not greeted: it tries again, as a connector does
            rendezvous.joined(1)
            return True
        return False

    until(joined)
    for one in held:
        one.close()


def test_rank_that_is_a_list_is_refused() -> None:
    entry = encode(Join(fingerprint(1), "session", 1)).replace(b'"node_rank":1', b'"node_rank":[]')
    with pytest.raises(
        InvalidMessageError, match=r"Fingerprint.node_rank: expected a whole number, found \[\]"
    ):
        decode(entry, Join)


def test_member_that_sends_too_much_is_disconnected(rendezvous: Live) -> None:
    """A line of 5 MB is not read to its end, and a question of 100 KB is refused by its own limit."""
    node = rendezvous.joined(1)
    for line in (b"- " + b"x" * 5_000_000, encode(Publish(Question("x" * 100_000)))):
        member = Stranger(rendezvous, rendezvous.secret, rank=0)
        member.say(Join(fingerprint(0), os.urandom(8).hex(), 1))
        member.send(member.seal.close(line).rstrip() if line.startswith(b"[") else line)
        member.heard()
        member.close()
    until(lambda: bool(rendezvous.warnings), node)
    assert_works(rendezvous, node)


def test_member_with_a_message_of_another_purpose_is_disconnected(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    member = Stranger(rendezvous, rendezvous.secret, rank=0)
    member.say(Join(fingerprint(0), os.urandom(8).hex(), 1))
    member.say(Publish(JoinNotice()))
    member.heard()
    member.close()
    until(
        lambda: any("JoinNotice is not a message of purpose 'test'" in one for one in rendezvous.warnings),
        node,
    )
    assert_works(rendezvous, node)


def test_identity_of_a_node_is_not_enough_to_take_its_session(rendezvous: Live) -> None:
    """An identity is no secret: it is sent to all nodes. The session token is not."""
    if rendezvous.secret is not None:
        pytest.skip(
            "with a secret, strangers do not get that far (test_forged_messages_are_rejected_with_a_secret)"
        )
    node = rendezvous.joined(1)
    before = rendezvous.coordinator.membership.ranks[1]
    thief = Stranger(rendezvous)
    thief.say(Join(fingerprint(1, host="thief", addresses=("10.6.6.6",)), "guessed", 10**6))
    refused = decode(next(line for line in thief.heard() if b"JoinNotice" in line)[2:].rstrip(), JoinNotice)
    assert refused.rejection is not None
    assert refused.rejection.kind is RejectionKind.RANK_TAKEN
    thief.close()
    assert rendezvous.coordinator.membership.ranks[1] == before
    assert_works(rendezvous, node)


def test_member_that_returns_with_other_details_is_rejected() -> None:
    """Knowing a node's identity is not enough to change its SSH address and interpreter, which others use."""
    with live(2) as rendezvous:
        node = rendezvous.joined(1, details=Health(1))
        node.close()
        member = rendezvous.coordinator.membership.ranks[1]
        until(lambda: rendezvous.coordinator.closed_s(member) > 0)
        thief = rendezvous.participant(1, details=Health(2))
        thief.join()
        with pytest.raises(RejectedError, match="two nodes have rank 1"):
            until(lambda: False, thief)
        assert rendezvous.coordinator.membership.ranks[1].details == Health(1)
        again = rendezvous.joined(1, details=Health(1))
        assert again.membership is not None


def test_only_node_0_publishes_the_state(rendezvous: Live) -> None:
    """A member's Publish sets only that member's value."""
    nodes = [rendezvous.joined(rank) for rank in range(2)]
    nodes[1].publish(Bulletin("forged: end all"))
    until(lambda: rendezvous.coordinator.values(Bulletin) == {1: Bulletin("forged: end all")}, *nodes)
    assert nodes[0].state(Bulletin) is None


def test_escape_sequences_of_other_nodes_are_escaped(rendezvous: Live) -> None:
    name = "gpu\x1b]0;owned\x07\x1b[2J\r\n[node 0] [SUCCESS] all is well\u202e\x9b31m"
    node = rendezvous.participant(7, host=name)
    node.join()
    with pytest.raises(RejectedError) as no:
        until(lambda: False, node)
    for text in (str(no.value), *rendezvous.warnings):
        assert text.isprintable()
    assert r"gpu\x1b]0;owned\x07\x1b[2J\r\n[node 0]" in rendezvous.warnings[0]


def test_repeated_second_launcher_of_a_rank_ends_nothing(rendezvous: Live) -> None:
    node = rendezvous.joined(1)
    for _ in range(3):
        second = rendezvous.participant(1, identity=os.urandom(4).hex(), host="elsewhere")
        second.join()
        with pytest.raises(RejectedError, match="two nodes have rank 1"):
            until(lambda: False, node, second)
        second.leave()
    assert_works(rendezvous, node)
    assert len(rendezvous.warnings) == 1


FORGERS: dict[str, Callable[[Live], Stranger]] = {
    "no secret": lambda rendezvous: Stranger(rendezvous),
    "another secret": lambda rendezvous: Stranger(rendezvous, Secret("another secret, as long")),
}


@pytest.mark.parametrize("forger", FORGERS)
def test_forged_messages_are_rejected_with_a_secret(forger: str) -> None:
    with live(2, secret=SECRET) as rendezvous:
        node = rendezvous.joined(1)
        stranger = FORGERS[forger](rendezvous)
        stranger.say(Join(fingerprint(0), "session", 1))
        stranger.say(Publish(Health(99)))
        stranger.heard()
        stranger.close()
        assert_works(rendezvous, node)
        assert 0 not in rendezvous.coordinator.membership.ranks


def test_lines_of_one_connection_are_invalid_on_another() -> None:
    with live(2, secret=SECRET) as rendezvous:
        member = Stranger(rendezvous, SECRET, rank=0)
        join = member.seal.close(encode(Join(fingerprint(0), "session", 1))).rstrip()
        replayed = Stranger(rendezvous, SECRET, rank=0)
        replayed.send(join)  # with the hello of this connection, sealed for another
        assert replayed.heard() == []
        until(lambda: any("has another PLATFORM_LAUNCH_SECRET" in one for one in rendezvous.warnings))
        assert rendezvous.coordinator.membership.everyone == []
        member.close()
        replayed.close()


def test_repeated_dropped_or_changed_line_ends_the_connection() -> None:
    with live(2, secret=SECRET) as rendezvous:
        for play in ("repeated", "left out", "changed"):
            member = Stranger(rendezvous, SECRET, rank=1)
            member.say(Join(fingerprint(1, identity=play), play, 1))
            lines = [member.seal.close(encode(Beat(count, 1.0))).rstrip() for count in range(1, 4)]
            sent = {
                "repeated": [lines[0], lines[0]],
                "left out": [lines[0], lines[2]],
                "changed": [lines[0].replace(b'"count":1', b'"count":9')],
            }[play]
            for line in sent:
                member.send(line)
            member.heard()  # until it is disconnected
            member.close()
            until(lambda: any("another secret" in one for one in rendezvous.warnings))
            rendezvous.said.clear()
            rendezvous.coordinator._warned.clear()
            with rendezvous.lock:
                for one in rendezvous.coordinator.membership.everyone:
                    rendezvous.coordinator.remove(one)


def test_hello_of_another_version_needs_the_secret() -> None:
    """A job ends for a node of another version; a stranger must not be able to claim one."""
    with live(2, secret=SECRET) as rendezvous:
        stranger = rendezvous.opened(1, secret=SECRET, purpose=Purpose(PURPOSE.name, ()))
        node = Participant(stranger, fingerprint(1), purpose=Purpose(PURPOSE.name, ()), secret=SECRET)
        with pytest.raises(RejectedError, match="do not understand each other"):
            node.join()
        until(lambda: any("do not understand each other" in one for one in rendezvous.warnings))
        rendezvous.changes.clear()
        false = Secret("another secret, as long")
        opened = rendezvous.opened(1, secret=false, purpose=Purpose(PURPOSE.name, ()))
        with pytest.raises(RejectedError):
            Participant(opened, fingerprint(1), purpose=Purpose(PURPOSE.name, ()), secret=false).join()
        until(lambda: bool(rendezvous.changes))
        (change,) = rendezvous.changes
        assert change.rejection is not None
        assert change.rejection.kind is RejectionKind.OTHER_SECRET


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
def test_different_secrets_are_reported_immediately_on_both_sides(
    ours: Secret | None, theirs: Secret | None, kind: RejectionKind, said: str
) -> None:
    with live(2, secret=ours) as rendezvous:
        node = rendezvous.participant(1, secret=theirs, host="gn7")
        with pytest.raises(RejectedError, match=said) as no:
            node.join()
        assert no.value.rejection.kind is kind
        until(lambda: bool(rendezvous.warnings))
        assert "node 1 (gn7 (10.0.0.1)) has" in rendezvous.warnings[0]
        assert all(change.kind is ChangeKind.REJECTED for change in rendezvous.changes)
        assert rendezvous.coordinator.membership.everyone == []
        again = rendezvous.joined(1, host="gn7")
        assert again.membership is not None


def test_peer_that_never_reads_costs_bounded_memory() -> None:
    """It is disconnected, and gets the newest state when it reconnects; the others are not affected."""
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        deaf = Stranger(rendezvous, rank=0)
        deaf.say(Join(fingerprint(0), "deaf", 1))
        until(lambda: 0 in rendezvous.coordinator.membership.ranks, node)
        peer = rendezvous.coordinator._peers[rendezvous.coordinator.membership.ranks[0].number]
        for number in range(600):
            with rendezvous.lock:
                rendezvous.coordinator.publish(Bulletin(f"{number} " + "x" * 60_000))
        last = Bulletin("599 " + "x" * 60_000)
        until(lambda: node.state(Bulletin) == last, node)
        if peer.writer is not None:
            assert peer.writer.transport.get_write_buffer_size() < 2**20
        deaf.close()


def test_secret_is_never_sent() -> None:
    with live(2, secret=SECRET) as rendezvous:
        member = Stranger(rendezvous, SECRET, rank=1)
        member.say(Join(fingerprint(1), "session", 1))
        member.say(Beat(1, 1.0))
        heard = encode(member.welcome) + member._file.readline() + member._file.readline()
        assert SECRET.reveal().encode() not in heard
        assert SECRET.reveal() not in repr(vars(member.seal))
        member.close()


def test_requests_and_answers_reach_only_their_recipients() -> None:
    with live(3) as rendezvous:
        nodes = [rendezvous.joined(rank) for rank in range(3)]
        inquiry = nodes[0].query(Question("?"), to=[1], limit_s=LIMIT_S)
        until(lambda: bool(nodes[1]._requests), *nodes)
        (request,) = nodes[1].requests()
        nodes[2].answer(request, Reply("forged"))  # node 2 was not asked
        nodes[1].answer(request, Reply("true"))
        until(lambda: inquiry.done, *nodes)
        assert list(inquiry.answers.values()) == [Reply("true")]
        assert nodes[2].requests() == []
