from __future__ import annotations

import socket
import time
from threading import Event

import pytest

from platform_launch.rollcall.reach import Reach, Step, is_here, is_loopback, reach, resolve


def test_an_open_port_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = reach("localhost", server.getsockname()[1], limit_s=2)
    assert found == Reach(Step.OPEN, "127.0.0.1")


def test_a_closed_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = reach("127.0.0.1", port, limit_s=2)
    assert found.step is Step.REFUSED
    assert found.in_words("127.0.0.1", port) == (
        f"127.0.0.1:{port}, which is this machine itself, refuses the connection: nothing listens there"
    )


def test_a_name_that_nobody_knows() -> None:
    found = reach("nowhere.invalid", 1, limit_s=5)
    assert found.in_words("nowhere.invalid", 1) == "the name 'nowhere.invalid' does not resolve here"


@pytest.mark.parametrize("name", ["", "a" * 300, "ü.invalid", "a..b", "x y"])
def test_a_strange_name_is_only_not_resolved(name: str) -> None:
    assert reach(name, 1, limit_s=5).step in (Step.NAME, Step.REFUSED)


def test_a_resolver_that_does_not_answer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Event()

    def stuck(*_args: object, **_kwargs: object) -> list[object]:
        answer.wait(5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    began = time.monotonic()
    assert resolve("slow.invalid", limit_s=0.05) == []
    assert time.monotonic() - began < 2
    answer.set()


def test_own_addresses_are_known() -> None:
    assert is_here(socket.AF_INET, "127.0.0.1")
    assert not is_here(socket.AF_INET, "192.0.2.77")


@pytest.mark.parametrize(
    ("address", "loops"), [("127.0.1.1", True), ("::1", True), ("10.0.0.1", False), ("x", False)]
)
def test_loopback_addresses(address: str, loops: bool) -> None:
    assert is_loopback(address) is loops
