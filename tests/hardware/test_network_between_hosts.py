"""The route to the master, on real hosts."""

from __future__ import annotations

import json
import sys
import time

import pytest

from tests.lab.netns import Host, hosts, requires_netns

pytestmark = [requires_netns, pytest.mark.lab]

_ROUTE = """
import json, sys, time
from platform_launch.hardware import network
interfaces = network.find()
started = time.monotonic()
route = network.route_towards(sys.argv[1], interfaces)
print(json.dumps([[i.name for i in interfaces], route, time.monotonic() - started]))
"""


def route(host: Host, master_addr: str) -> tuple[list[str], str | None, float]:
    done = host.run([sys.executable, "-c", _ROUTE, master_addr])
    assert done.returncode == 0, done.stderr
    names, found, seconds = json.loads(done.stdout)
    return names, found, seconds


def test_each_host_finds_the_interface_towards_the_master() -> None:
    with hosts(2) as (node0, node1):
        for host in (node0, node1):
            assert route(host, "node0")[:2] == (["eth0"], "eth0")
            assert route(host, node0.address)[:2] == (["eth0"], "eth0")


def test_an_address_without_a_route_has_no_interface() -> None:
    with hosts(1) as (node0,):
        assert route(node0, "198.51.100.7")[:2] == (["eth0"], None)


def test_a_silent_name_server_costs_no_more_than_the_limit() -> None:
    with hosts(1) as (node0,):
        # An address of the subnet that nobody holds: the question is sent, and no answer comes.
        (node0.etc / "resolv.conf").write_text("nameserver 10.213.0.250\n")
        started = time.monotonic()
        _, found, seconds = route(node0, "master.example")
        assert (found, seconds < 0.5) == (None, True)
        assert time.monotonic() - started < 3
