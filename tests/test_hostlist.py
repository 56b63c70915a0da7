"""Host names as platforms write them."""

from __future__ import annotations

import pytest

from platform_launch.errors import TopologyError
from platform_launch.hostlist import (
    MAX_HOSTS,
    expand,
    expand_counts,
    parse_host,
    position,
    short_name,
    split_host_port,
    split_hosts,
)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("gnode[10,20]", "gnode10 gnode20"),
        ("a[1-3,07],b9,c[1-2]x[0-1]", "a1 a2 a3 a07 b9 c1x0 c1x1 c2x0 c2x1"),
        ("gpu[008-011]", "gpu008 gpu009 gpu010 gpu011"),
        ("gpu[8-11]", "gpu8 gpu9 gpu10 gpu11"),
        ("r[1-2]-n[1-2].dom", "r1-n1.dom r1-n2.dom r2-n1.dom r2-n2.dom"),
        ("n[3]", "n3"),
        (" n1 , n2 ", "n1 n2"),
    ],
)
def test_a_compressed_list_is_expanded_in_its_order(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,,b",
        "a[1-2",
        "a1-2]",
        "a[]",
        "a[2-1]",
        "a[1-]",
        "a[x]",
        "a[[1]]",
        "a b",
        "(null)",
        "a[1-2]]",
        "a[٣]",
    ],
)
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises(TopologyError):
        expand(text)


@pytest.mark.parametrize("text", ["a[1-999999999]", "a[1-400]x[1-400]", ",".join(["a[1-99999]"] * 3)])
def test_a_list_beyond_any_cluster_is_refused_before_it_is_built(text: str) -> None:
    with pytest.raises(TopologyError, match=str(MAX_HOSTS)):
        expand(text)


def test_run_lengths_are_expanded() -> None:
    assert expand_counts("8(x2),4") == (8, 8, 4)
    assert expand_counts("1") == (1,)


@pytest.mark.parametrize("text", ["", "8(x2", "x", "8(2)", "5(x999999)", "-1"])
def test_malformed_run_lengths_are_refused(text: str) -> None:
    with pytest.raises(TopologyError):
        expand_counts(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("10.0.0.1:8,10.0.0.2:8", ("10.0.0.1", "10.0.0.2")),
        ("10.0.0.1\n10.0.0.2\n", ("10.0.0.1", "10.0.0.2")),
        ("a, b ,c,", ("a", "b", "c")),
        ("[fd00::1]:80,[fd00::2]", ("fd00::1", "fd00::2")),
        ("fd00::1,fd00::2", ("fd00::1", "fd00::2")),
    ],
)
def test_a_plain_list_loses_what_stands_behind_its_hosts(text: str, hosts: tuple[str, ...]) -> None:
    assert split_hosts(text, "X") == hosts


def test_the_same_host_twice_is_refused() -> None:
    with pytest.raises(TopologyError, match="'a' twice"):
        split_hosts("a,b,a", "X")


def test_an_ipv6_address_is_no_host_with_a_port() -> None:
    assert split_host_port("fd00::1:2", "X") == ("fd00::1:2", None)
    assert split_host_port("[fd00::1]:2", "X") == ("fd00::1", "2")
    assert split_host_port("host:2", "X") == ("host", "2")
    assert split_host_port("host", "X") == ("host", None)


@pytest.mark.parametrize("text", ["a", "a-b.c_d", "10.0.0.1", "fd00::1", "[::1]", "fe80::1%eth0", "a."])
def test_names_and_addresses_are_hosts(text: str) -> None:
    assert parse_host(text, "X") == text.strip("[]")


@pytest.mark.parametrize(
    "text", ["", "-a", "a b", "a/b", "a;b", "$(a)", "é", "a:1", "a" * 254, "a\n b", "[a", "a-0..svc"]
)
def test_everything_else_is_not(text: str) -> None:
    with pytest.raises(TopologyError, match="is not a host"):
        parse_host(text, "X")


def test_a_host_finds_itself_by_its_whole_name_before_its_short_one() -> None:
    hosts = ("n1.rack1", "n1.rack2", "n2.rack1")
    assert position(hosts, frozenset({"n1.rack2", "n1"})) == 1
    assert position(hosts, frozenset({"n2"})) == 2
    assert position(("n1", "n2"), frozenset({"n2.cluster.local"})) == 1


def test_a_host_with_two_places_or_none_has_no_position() -> None:
    assert position(("n1.rack1", "n1.rack2"), frozenset({"n1"})) is None
    assert position(("a", "b"), frozenset({"c"})) is None
    assert position(("10.0.0.1", "10.0.0.2"), frozenset({"10.1.1.1", "10"})) is None


def test_an_address_has_no_short_name() -> None:
    assert (short_name("10.0.0.1"), short_name("fd00::1"), short_name("a.b.c")) == (
        "10.0.0.1",
        "fd00::1",
        "a",
    )
