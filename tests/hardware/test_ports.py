"""Ports that are really taken, by this process and by others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from platform_launch.hardware import ports
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S

LISTEN = (
    "import socket\ns = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True);"
    "s.accept()"
)


def test_a_free_port_has_no_problem() -> None:
    with reserved_port() as number:
        assert ports.probe(number) == ports.Port(number)


def test_the_process_that_listens_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = ports.probe(int(process.stdout.readline()))
        finally:
            process.kill()
    assert found.taken
    assert len(found.holders) == 1
    assert found.held_by().startswith(f"pid {process.pid} ({sys.executable} -c")
    assert "\n" not in found.held_by()  # it stands in one line of a refusal


def test_a_port_taken_on_one_address_is_taken() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        only_ipv6 = ports.probe(server.getsockname()[1])
    assert not only_ipv6.problem  # torch then listens on IPv4
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert ports.probe(server.getsockname()[1]).holders[0].startswith(f"pid {os.getpid()} (")


def test_a_port_that_is_closing_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", number))
        connection, _ = server.accept()
        connection.close()  # closes first: its end stays in TIME_WAIT
        client.close()
    assert ports.probe(number).problem == ""


def test_looking_never_listens() -> None:
    with reserved_port() as number:
        ports.probe(number)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", number), timeout=LIMIT_S)


def test_listening_is_open_to_both_protocols_and_refused_where_another_listens() -> None:
    with ports.listen(0) as server:
        number = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", number)).close()
        with pytest.raises(OSError, match="Address already in use"):
            ports.listen(number)
