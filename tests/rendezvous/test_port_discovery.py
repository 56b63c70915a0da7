"""MASTER_PORT says where the nodes meet, while it is the launcher's."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from platform_launch.rendezvous.authentication import Seal, Secret
from platform_launch.rendezvous.port_discovery import (
    announce_port,
    announce_refusal,
    discover_port,
)
from platform_launch.rendezvous.verdict import RunRefusal
from tests.lab.port import reserved_port


def test_node_0_says_where_the_nodes_meet() -> None:
    with announce_port(0, lambda: 41234) as port:
        assert discover_port("127.0.0.1", port) == 41234


@pytest.mark.parametrize("known", [0, 65536, -1])
def test_what_is_no_port_is_not_believed(known: int) -> None:
    with announce_port(0, lambda: known) as port:
        assert discover_port("127.0.0.1", port) is None


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400\r\n\r\n", b'["RunState",{}]\n', b"\xff" * 100_000])
def test_another_listener_says_nothing(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection, suppress(ConnectionError):  # who asks reads a line, and no more
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        assert discover_port("127.0.0.1", server.getsockname()[1]) is None
        thread.join()


def test_a_mute_listener_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert discover_port("127.0.0.1", server.getsockname()[1]) is None


def test_a_closed_port_says_nothing() -> None:
    with reserved_port() as port:
        assert discover_port("127.0.0.1", port) is None


def test_a_node_0_that_cannot_serve_is_believed_where_its_seal_is_right() -> None:
    refusal = RunRefusal(67, "node 0 cannot start: no torch", "look at node 0")
    secret, other = Secret("a secret of the whole job"), Secret("another secret than that")
    asked: list[None] = []
    for sealed in (None, secret):
        seal = Seal(sealed, "test", "")
        with announce_refusal(0, refusal, seal, lambda: asked.append(None)) as port:
            assert discover_port("127.0.0.1", port, seal) == refusal
            assert discover_port("127.0.0.1", port) is None
            assert discover_port("127.0.0.1", port, Seal(other, "test", "")) is None
    assert len(asked) == 6
