"""The client without torch, against torch's own servers; and a node that has only it, at a coordinator."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
import torch.distributed

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.participant import Participant
from platform_launch.rendezvous.store import Store, StoreError
from platform_launch.rendezvous.torch_free import TorchFreeClient
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import PURPOSE, live, until
from tests.rendezvous.nodes import fingerprint


@pytest.fixture(params=[True, False], ids=["libuv", "no libuv"])
def server(request: pytest.FixtureRequest) -> Any:
    distributed: Any = torch.distributed
    return distributed.TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        timeout=timedelta(seconds=LIMIT_S),
        wait_for_workers=False,
        use_libuv=request.param,
    )


def test_it_asks_as_torch_does_and_understands_the_answers(server: Any) -> None:
    client = TorchFreeClient("127.0.0.1", server.port, LIMIT_S)
    client.set("first", "one")
    assert server.get("first") == b"one"  # torch waits for a key
    long = "é" * 100_000
    server.set("second", long)
    until(lambda: client.check(["second"]))
    assert client.get("second").decode() == long
    assert client.multi_get(["first", "second"]) == [b"one", long.encode()]
    assert client.check(["first", "second"])
    assert not client.check(["first", "third"])
    assert client.compare_set("third", "", "3") == b"3" == server.get("third")
    assert client.compare_set("third", "", "4") == b"3"
    assert client.compare_set("third", "3", "4") == b"4" == server.get("third")
    assert client.delete_key("third")
    assert not client.delete_key("third")
    assert not server.check(["third"])


def test_a_store_without_torch_answers_as_one_with_it(server: Any) -> None:
    with_torch = Store.connect("127.0.0.1", server.port, limit_s=LIMIT_S)
    without = Store.connect_without_torch("127.0.0.1", server.port, limit_s=LIMIT_S)
    for one, other in ((with_torch, without), (without, with_torch)):
        one.write_all([("a", b"1"), ("b", b"")])
        assert one.read(["a", "b"]) == [b"1", b""]  # and so they are there for others
        assert other.exchange("c", b"3", ["a", "b", "nothing"]) == [b"1", b"", None]
        assert one.replace("d", b"", b"4") == b"4"
        assert other.replace("d", b"\xff", b"5") == b"4"
        other.delete(["a", "b", "c", "d", "nothing"])  # which is answered
        assert one.read(["a", "b", "c", "d"]) == [None] * 4
    with_torch.close()
    without.close()


@pytest.fixture
def stranger() -> Iterator[tuple[int, list[bytes]]]:
    """A port, and what is answered there to whoever comes first; nothing more is said then."""
    answers: list[bytes] = []
    taken: list[socket.socket] = []

    def answer() -> None:
        connection, _ = listening.accept()
        taken.append(connection)
        for data in answers:
            connection.sendall(data)
        if answers:
            connection.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=answer)
        thread.start()
        yield listening.getsockname()[1], answers
        thread.join()
    for connection in taken:
        connection.close()


@pytest.mark.parametrize("answer", [b"\0", struct.pack("=Q", 2**62), struct.pack("=QB", 9, 1)])
def test_what_is_no_store_ends_in_one_error(stranger: tuple[int, list[bytes]], answer: bytes) -> None:
    port, answers = stranger
    answers.append(answer)
    store = Store.connect_without_torch("127.0.0.1", port, limit_s=LIMIT_S)
    with pytest.raises(StoreError):
        store.replace("key", b"", b"value")
    store.close()


def test_it_does_not_wait_for_ever(stranger: tuple[int, list[bytes]]) -> None:
    store = Store.connect_without_torch("127.0.0.1", stranger[0], limit_s=0.2, open_limit_s=LIMIT_S)
    with pytest.raises(StoreError):
        store.read(["key"])
    store.close()


@pytest.mark.parametrize("secret", [None, Secret("a secret of the whole job")])
def test_a_node_without_torch_is_heard_as_any_other(secret: Secret | None) -> None:
    with live(2, secret=secret) as rendezvous:
        store = Store.connect_without_torch("127.0.0.1", rendezvous.store.port, limit_s=LIMIT_S)
        me = fingerprint(1, refusal="no torch here", refusal_code=67)
        node = Participant(store, me, purpose=PURPOSE, secret=secret)
        node.join()
        until(lambda: node.seat is not None, node)
        [change] = [one for one in rendezvous.changes if one.member.rank == 1]
        assert change.member.node.refusal == "no torch here"
        node.leave()
        store.close()
    assert rendezvous.warnings == []
