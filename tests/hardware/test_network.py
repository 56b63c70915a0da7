"""Which interfaces carry training, and which one leads to the master."""

from __future__ import annotations

import pytest

from platform_launch.hardware import Interface, network
from platform_launch.hardware.network import Link, route_towards, usable


def names(*links: Link) -> list[str]:
    return [interface.name for interface in usable(links)]


def up(name: str, *addresses: str, speed_mbps: int = 0) -> Link:
    return Link(name, True, addresses, speed_mbps)


def test_a_kubernetes_node_keeps_only_its_own_interfaces() -> None:
    links = [
        up("lo", "127.0.0.1", "::1"),
        up("bond0", "10.0.0.7", "fe80::1%bond0", speed_mbps=200000),
        up("docker0", "172.17.0.1"),
        up("br-1f2e3d4c5b6a", "172.18.0.1"),
        up("veth01ab23", "10.244.9.9"),
        up("virbr0", "192.168.122.1"),
        up("cni0", "10.244.1.1"),
        up("flannel.1", "10.244.1.0"),
        up("cali0123456789a", "10.244.1.7"),
        up("tunl0", "10.244.1.2"),
        up("kube-ipvs0", "10.96.0.1"),
        up("dummy0", "10.1.1.1"),
    ]
    assert usable(links) == (Interface("bond0", ("10.0.0.7",), 200000),)


@pytest.mark.parametrize(
    "name",
    [
        "eth0",
        "ens5",
        "enp0s1",
        "enP5p9s0f0np0",
        "ib0",
        "ibp24s0",
        "bond0",
        "bond0.100",
        "br0",
        "net1",
        "macvlan0",
    ],
)
def test_every_kind_of_real_interface_is_kept(name: str) -> None:
    assert names(up(name, "10.0.0.7")) == [name]


def test_gb200_interfaces_are_kept_and_its_management_link_is_not() -> None:
    links = [
        up("enP22p3s0f0np0", "10.4.0.11", speed_mbps=200000),
        up("enP5p9s0", "192.0.2.11", speed_mbps=10000),
        up("enxbe3af2b6059f", "169.254.3.1", "fe80::bc3a:f2ff:feb6:59f%enxbe3af2b6059f"),
    ]
    assert names(*links) == ["enP22p3s0f0np0", "enP5p9s0"]


def test_an_interface_that_is_down_or_has_no_address_cannot_carry_traffic() -> None:
    assert names(Link("eth0", False, ("10.0.0.7",)), up("eth1"), up("eth2", "fe80::1%eth2")) == []


def test_an_unknown_speed_is_none() -> None:
    assert usable([up("eth0", "10.0.0.7")])[0].speed_mbps is None


def test_the_masters_interface_on_the_master_itself_is_the_one_with_its_address() -> None:
    interfaces = network.find()
    if not interfaces:
        pytest.skip("this machine has no network interface but loopback")
    for interface in interfaces:
        assert route_towards(interface.addresses[0], interfaces) == interface.name


@pytest.mark.parametrize("master", ["127.0.0.1", "::1", "localhost"])
def test_loopback_is_no_interface_for_training(master: str) -> None:
    assert route_towards(master, network.find()) is None


@pytest.mark.parametrize(
    "master", ["no-such-host.invalid", "", "a" * 300, "bad..name", "$(hostname)", "\udcff"]
)
def test_a_name_that_does_not_resolve_has_no_route(master: str) -> None:
    assert route_towards(master, [Interface("eth0", ("10.0.0.7",))]) is None


def test_this_machines_addresses_are_its_own() -> None:
    own = [address for interface in network.find() for address in interface.addresses]
    assert all(network.is_own(address) for address in ("127.0.0.1", "127.0.1.1", "::1", *own))
    assert not any(network.is_own(address) for address in ("192.0.2.254", "2001:db8::1", "no address"))
