"""Requests that are no HTTP, or never end: answered or cut off, and nobody else notices."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from platform_launch.procguard.server import middleware
from platform_launch.procguard.server.middleware import MAX_HEAD
from tests.lab.waiting import LIMIT_S
from tests.procguard.serving import Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("rude")) as found:
        yield found


def test_a_request_whose_head_never_ends_is_cut_off(server: Served) -> None:
    port = httpx.URL(server.url).port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=LIMIT_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
        sent = 0
        with suppress(OSError):  # reset or broken pipe, as it comes
            while sent < 100 * MAX_HEAD:
                connection.sendall(b"a" * 16384)
                sent += 16384
    assert sent < 100 * MAX_HEAD
    assert server.client().get("/healthz").status_code == 200


def test_a_body_that_never_comes_is_not_waited_for(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of an agent nobody knows, which is answered at once, nor anybody else's for long."""
    monkeypatch.setattr(middleware, "BODY_WITHIN_S", 0.5)
    port = httpx.URL(server.url).port
    for path, status in (("agent/heartbeat", b" 401 "), ("login", b"")):
        with socket.create_connection(("127.0.0.1", port or 0), timeout=LIMIT_S) as connection:
            head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n"
            connection.sendall(head.encode() + b'{"name')
            answer = b""
            while data := connection.recv(65536):  # until the server has closed it
                answer += data
        assert status in answer.partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /%ff%fe%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET //etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /static/../../app.py HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /static/%2e%2e/%2e%2e/pages.py HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nCookie: " + b"a=b; " * 3000 + b"\r\nConnection: close\r\n\r\n",
    ],
)
def test_what_is_no_http_is_no_fault(server: Served, raw: bytes) -> None:
    port = httpx.URL(server.url).port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=LIMIT_S) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert b" 200 " not in answer.partition(b"\r\n")[0]
    assert server.client().get("/healthz").status_code == 200
