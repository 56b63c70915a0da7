"""The lab itself: hosts that behave like hosts, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import LIMIT_S

pytestmark = requires_netns

_LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 29500))
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""

_CONNECT = """
import socket
try:
    socket.create_connection(("node0", 29500), timeout=1.5).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def pair() -> Iterator[tuple[Host, Host]]:
    with hosts(2) as (node0, node1):
        yield node0, node1


def connect(host: Host) -> str:
    done = host.run([sys.executable, "-c", _CONNECT])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_hosts_reach_each_other_by_name_until_the_cable_is_cut(pair: tuple[Host, Host]) -> None:
    node0, node1 = pair
    assert connect(node1) == "ConnectionRefusedError"
    with node0.popen([sys.executable, "-c", _LISTEN]) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        assert connect(node1) == "connected"
        node0.cut()
        assert connect(node1) == "TimeoutError"
        node0.heal()
        assert connect(node1) == "connected"
        server.kill()


def test_every_host_has_its_own_name_and_address(pair: tuple[Host, Host]) -> None:
    for host in pair:
        script = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
        assert host.run([sys.executable, "-c", script]).stdout.split() == [host.name, host.address]
    assert [host.name for host in pair] == ["node0", "node1"]


def test_an_unknown_name_fails(pair: tuple[Host, Host]) -> None:
    script = "import socket; socket.gethostbyname('node9.example')"
    done = pair[0].run([sys.executable, "-c", script])
    assert "gaierror" in done.stderr


def test_signals_reach_the_command_itself(pair: tuple[Host, Host]) -> None:
    with pair[0].popen(["sleep", "60"]) as sleeper:
        sleeper.send_signal(signal.SIGTERM)
        assert sleeper.wait(LIMIT_S) == -signal.SIGTERM


def test_variables_are_added_and_output_is_returned(pair: tuple[Host, Host]) -> None:
    done = pair[1].run(["sh", "-c", 'echo "$GREETING"; exit 3'], env={"GREETING": "a b"})
    assert (done.returncode, done.stdout) == (3, "a b\n")


def test_nothing_is_left_behind_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), hosts(2) as made:  # noqa: PT012
        sleeper = made[0].popen(["sh", "-c", "echo there; exec sleep 600"])
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "there\n"
        raise ZeroDivisionError
    assert sleeper.wait(LIMIT_S) == -signal.SIGKILL
    assert sleeper.stdout is not None
    sleeper.stdout.close()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for host in made:
        assert host.namespace not in listed
        assert host.switch not in listed
        assert not Path(host.etc).exists()


def test_two_labs_at_once_do_not_meet() -> None:
    with hosts(1) as (here,), hosts(1) as (there,):
        assert here.address == there.address
        assert here.namespace != there.namespace
        with here.popen([sys.executable, "-c", _LISTEN]) as server:
            assert server.stdout is not None
            server.stdout.readline()
            assert connect(here) == "connected"
            assert connect(there) == "ConnectionRefusedError"
            server.kill()
