"""Large packets that get lost where small ones pass, on real hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from platform_launch.rendezvous.large_packets import lost_above
from platform_launch.rendezvous.reach import open_port
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.port import reserved_port


@contextmanager
def listening(made: tuple[Host, ...]) -> Iterator[Mapping[str, tuple[str, int]]]:
    """Open a port on each host."""
    with ExitStack() as stack:
        places = {}
        for host in made:
            with host.entered():
                places[host.name] = (host.address, stack.enter_context(open_port()))
        yield places


@requires_netns
def test_host_behind_a_small_mtu_is_named_with_the_lost_size() -> None:
    with hosts(3) as made, listening(made) as places:
        with made[0].entered():
            assert lost_above(places) == {}
        made[2].lose_large_packets(1400)
        with made[0].entered():
            assert lost_above(places) == {"node2": 1500}
        with made[2].entered():  # in both directions
            assert lost_above(places) == {"node0": 1500, "node1": 1500}


@requires_netns
def test_an_interface_with_a_smaller_mtu_loses_nothing() -> None:
    """Its kernel announces its maximum segment size to the others."""
    with hosts(2) as made, listening(made) as places:
        made[1].run(["ip", "link", "set", "eth0", "mtu", "1400"])
        for host in made:
            with host.entered():
                assert lost_above(places) == {}


@requires_netns
def test_unreachable_host_is_not_named() -> None:
    with hosts(2) as made, listening(made) as places:
        made[1].cut()
        with made[0].entered():
            assert lost_above(places) == {}


def test_closed_port_is_not_named() -> None:
    with reserved_port() as port:
        assert lost_above({0: ("127.0.0.1", port)}) == {}


@requires_netns
def test_packets_to_the_own_machine_arrive() -> None:
    with hosts(1) as (host,), host.entered(), open_port() as port:
        assert lost_above({address: (address, port) for address in ("127.0.0.1", "::1")}) == {}
