from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest

from platform_launch.hardware.names import is_loopback
from platform_launch.rendezvous.reach import Reach, ReachStep, is_here, open_port, reach, resolve
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
    assert found.in_words("127.0.0.1", port) == (
        f"127.0.0.1:{port}, which is this machine itself, refuses the connection: nothing listens there"
    )


def test_a_name_that_nobody_knows() -> None:
    assert Reach(ReachStep.NAME).in_words("nowhere.invalid", 1) == (
        "the name 'nowhere.invalid' does not resolve here"
    )


@pytest.mark.parametrize("name", ["", "a" * 300, "ü.invalid", "a..b", "x y"])
def test_a_strange_name_is_only_not_resolved(name: str) -> None:
    assert reach(name, 1, limit_s=5).step in (ReachStep.NAME, ReachStep.NO_NAME_SERVER, ReachStep.REFUSED)


def test_a_slow_name_server_is_waited_for_by_whoever_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = Event(), list[bytes]()

    def slow(host: bytes, *_args: object, **_kwargs: object) -> list[object]:
        asked.append(host)
        answer.wait()
        return [(socket.AF_INET, 1, 6, "", ("192.0.2.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    found = reach("slow.invalid", 1, limit_s=0.05)
    assert found.step is ReachStep.NO_NAME_SERVER
    assert "no name server has answered yet" in found.in_words("slow.invalid", 1)
    answer.set()
    assert resolve("slow.invalid", limit_s=LIMIT_S).found == ((socket.AF_INET, "192.0.2.7"),)
    assert asked == [b"slow.invalid"]


def test_a_name_is_unknown_only_where_a_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_kwargs: object) -> list[object]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert resolve("node0.invalid", limit_s=LIMIT_S).step is ReachStep.NO_NAME_SERVER


def test_own_addresses_are_known() -> None:
    assert is_here(socket.AF_INET, "127.0.0.1")
    assert not is_here(socket.AF_INET, "192.0.2.77")


@pytest.mark.parametrize(
    ("address", "loops"), [("127.0.1.1", True), ("::1", True), ("10.0.0.1", False), ("x", False)]
)
def test_loopback_addresses(address: str, loops: bool) -> None:
    assert is_loopback(address) is loops


def test_threads_that_ask_for_one_name_at_once_are_all_answered() -> None:
    with ThreadPoolExecutor(16) as pool:
        for _ in range(50):
            answers = list(pool.map(lambda _: resolve("localhost", 30), range(16)))
            assert {answer.step for answer in answers} == {ReachStep.OPEN}


OUT_OF_DESCRIPTORS = """
import os, resource, socket, time
from platform_launch.rendezvous.reach import open_port

with open_port(0, lambda: b"hello") as port, socket.socket() as client:
    client.settimeout(float(os.environ["LIMIT_S"]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
    client.connect(("127.0.0.1", port))
    time.sleep(0.5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(client.recv(5))
"""


def test_an_open_port_greets_on_once_a_descriptor_is_free_again() -> None:
    """Of node 0: of a thousand nodes that ask for the rendezvous' port, each is answered some time."""
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS],
        env={**os.environ, "LIMIT_S": "20"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout == "b'hello'\n", done.stderr


def test_an_open_port_outlives_a_moment_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, failed = Thread.start, list[Thread]()

    def fails_once(thread: Thread) -> None:
        if "_greet" in str(thread) and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(Thread, "start", fails_once)
    with open_port(0, lambda: b"hello") as port:
        for heard in (b"", b"hello"):
            with socket.create_connection(("127.0.0.1", port), 20) as client:
                assert client.recv(5) == heard
    assert failed
