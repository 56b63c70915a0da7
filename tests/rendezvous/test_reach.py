from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from platform_launch.hardware.names import is_loopback
from platform_launch.rendezvous.reach import Reach, ReachStep, is_local_address, open_port, reach, resolve
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S


def test_an_open_port_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = reach("localhost", server.getsockname()[1], limit_s=LIMIT_S)
    assert found == Reach(ReachStep.OPEN, "127.0.0.1")


def test_a_closed_port_is_refused() -> None:
    with reserved_port() as port:
        found = reach("127.0.0.1", port, limit_s=LIMIT_S)
    assert found.step is ReachStep.REFUSED
    assert found.describe("127.0.0.1", port) == (
        f"127.0.0.1:{port}, which is this machine itself, refuses the connection: nothing listens there"
    )


def test_unknown_name_is_reported() -> None:
    assert Reach(ReachStep.NAME).describe("nowhere.invalid", 1) == (
        "the name 'nowhere.invalid' does not resolve here"
    )


@pytest.mark.parametrize("name", ["", "a" * 300, "ü.invalid", "a..b", "x y"])
def test_invalid_name_is_not_resolved(name: str) -> None:
    assert reach(name, 1, limit_s=5).step in (ReachStep.NAME, ReachStep.NO_NAME_SERVER, ReachStep.REFUSED)


def test_second_request_waits_for_a_slow_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = Event(), list[bytes]()

    def slow(host: bytes, *_args: object, **_kwargs: object) -> list[object]:
        asked.append(host)
        answer.wait()
        return [(socket.AF_INET, 1, 6, "", ("192.0.2.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    found = reach("slow.invalid", 1, limit_s=0.05)
    assert found.step is ReachStep.NO_NAME_SERVER
    assert "no name server has answered" in found.describe("slow.invalid", 1)
    answer.set()
    assert resolve("slow.invalid", limit_s=LIMIT_S).found == ((socket.AF_INET, "192.0.2.7"),)
    assert asked == [b"slow.invalid"]


def test_name_is_unknown_only_if_a_server_answers_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_kwargs: object) -> list[object]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert resolve("node0.invalid", limit_s=LIMIT_S).step is ReachStep.NO_NAME_SERVER


def test_own_addresses_are_local() -> None:
    assert is_local_address(socket.AF_INET, "127.0.0.1")
    assert not is_local_address(socket.AF_INET, "192.0.2.77")


@pytest.mark.parametrize(
    ("address", "loops"), [("127.0.1.1", True), ("::1", True), ("10.0.0.1", False), ("x", False)]
)
def test_loopback_addresses(address: str, loops: bool) -> None:
    assert is_loopback(address) is loops


def test_concurrent_requests_for_one_name_are_all_answered() -> None:
    with ThreadPoolExecutor(16) as pool:
        for _ in range(50):
            answers = list(pool.map(lambda _: resolve("localhost", 30), range(16)))
            assert {answer.step for answer in answers} == {ReachStep.OPEN}


def test_open_port_accepts_connections_and_is_released() -> None:
    with open_port() as port:
        for _ in range(3):
            socket.create_connection(("127.0.0.1", port), 20).close()
    with open_port(port) as again:
        assert again == port
