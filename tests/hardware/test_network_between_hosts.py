"""The route to the master, on real hosts."""

from __future__ import annotations

import json
import sys

from tests.lab.netns import Host, hosts, requires_netns

pytestmark = requires_netns

_ROUTE = """
import json, sys
from platform_launch.hardware import network
interfaces = network.find()
route = network.route_towards(sys.argv[1], interfaces)
print(json.dumps([[i.name for i in interfaces], route]))
"""


def route(host: Host, master_addr: str) -> tuple[list[str], str | None]:
    done = host.run([sys.executable, "-c", _ROUTE, master_addr])
    assert done.returncode == 0, done.stderr
    names, found = json.loads(done.stdout)
    return names, found


def test_each_host_finds_the_interface_towards_the_master() -> None:
    with hosts(2) as (node0, node1):
        for host in (node0, node1):
            assert route(host, "node0") == (["eth0"], "eth0")
            assert route(host, node0.address) == (["eth0"], "eth0")


def test_an_address_without_a_route_has_no_interface() -> None:
    with hosts(1) as (node0,):
        assert route(node0, "198.51.100.7") == (["eth0"], None)


def test_a_silent_name_server_is_not_waited_for() -> None:
    with hosts(1) as (node0,):
        # An address of the subnet that nobody holds: the question is sent, and no answer comes.
        (node0.etc / "resolv.conf").write_text("nameserver 10.213.0.250\noptions timeout:30 attempts:5\n")
        patient = node0.popen(["getent", "hosts", "master.example"])
        assert route(node0, "master.example")[1] is None
        assert patient.poll() is None, "the resolver itself has given up before"
        patient.kill()
        patient.communicate()
