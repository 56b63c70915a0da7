"""The ports of the rendezvous: a list that every node computes, of which the first free one is used."""

from __future__ import annotations

import socket

import pytest

from platform_launch.errors import TopologyError
from platform_launch.rendezvous.listening import PortInUseError, candidates, listen, rendezvous_ports
from tests.lab.port import reserved_port
from tests.rendezvous.nodes import topology_and_environment


def test_jobs_with_adjacent_master_ports_use_different_ports() -> None:
    """Every guide advises MASTER_PORT + 1 for a second job on the same hosts."""
    for master_port in (1024, 10000, 29500, 31500, 65535):
        own = candidates(master_port)
        assert len(set(own)) == len(own) == 3
        assert all(12000 <= port < 30000 for port in own)
        assert not {master_port - 1, master_port, master_port + 1} & set(own)
        assert own == candidates(master_port)
    taken = [port for master_port in range(31500, 31520) for port in candidates(master_port)]
    assert len(set(taken)) >= len(taken) - 1


def test_init_master_port_comes_first_and_the_usual_ports_follow() -> None:
    topology, env = topology_and_environment(INIT_MASTER_PORT="4711")
    assert rendezvous_ports(topology, env) == (4711, *candidates(topology.master_port))
    topology, env = topology_and_environment()
    assert rendezvous_ports(topology, env) == candidates(topology.master_port)


def test_init_master_port_cannot_be_master_port() -> None:
    topology, env = topology_and_environment(INIT_MASTER_PORT="29500")
    with pytest.raises(TopologyError, match="is MASTER_PORT too"):
        rendezvous_ports(topology, env)


def test_port_in_use_is_skipped_and_named_if_none_is_left() -> None:
    with reserved_port() as free, socket.create_server(("", 0)) as other:
        taken = other.getsockname()[1]
        with listen((taken, free), 2) as listener:
            assert listener.getsockname()[1] == free
        with pytest.raises(
            PortInUseError, match=rf"port {taken} for the roll call cannot be used: .* held by pid"
        ):
            listen((taken,), 2)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_connections_carry_small_segments_both_ways(address: str) -> None:
    """So the nodes can connect even if a switch drops large packets."""
    with (
        listen((0,), 2) as listener,
        socket.create_connection((address, listener.getsockname()[1])) as ours,
        listener.accept()[0] as theirs,
    ):
        for end in (ours, theirs):
            assert 0 < end.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 536
