"""Ranks against the network they run on."""

from __future__ import annotations

import random

import pytest

from platform_launch.rendezvous.network_order import (
    NETWORK_VARIABLE,
    crossings,
    network_order,
    order_warnings,
    place_of,
)

SLURM = {"SLURM_TOPOLOGY_ADDR": "core.rack2.node7", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}


@pytest.mark.parametrize(
    ("env", "fabric", "place"),
    [
        (SLURM, "", ("core", "rack2")),
        ({**SLURM, "SLURM_TOPOLOGY_ADDR": "core.rack2.node7.site.edu"}, "", ("core", "rack2")),
        (
            {"SLURM_TOPOLOGY_ADDR": "b1.node7", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"},
            "uuid",
            ("b1", "uuid"),
        ),
        ({**SLURM, NETWORK_VARIABLE: "zone1/rack4"}, "", ("zone1", "rack4")),
        ({"SLURM_TOPOLOGY_ADDR": "node7", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}, "", ()),
        ({}, "uuid", ("uuid",)),
        ({}, "", ()),
    ],
)
def test_a_node_knows_the_switches_above_it(env: dict[str, str], fabric: str, place: tuple[str, ...]) -> None:
    assert place_of(env, fabric) == place


def test_nodes_of_one_switch_follow_each_other_and_node_0_stays() -> None:
    places = [("core", rack) for rack in ("b", "a", "b", "a", "b", "a")]
    assert network_order(places) == [0, 2, 4, 1, 3, 5]
    assert (crossings(places), crossings([places[rank] for rank in network_order(places)])) == (6, 2)


def test_racks_of_one_row_stay_together() -> None:
    places = [("row1", "r1"), ("row2", "r3"), ("row1", "r2"), ("row2", "r4"), ("row1", "r1")]
    assert network_order(places) == [0, 4, 2, 1, 3]


def test_no_order_crosses_fewer_switches_than_there_are() -> None:
    shuffled = random.Random(7)
    for racks in range(1, 6):
        places = [("core", str(shuffled.randrange(racks))) for _ in range(40)]
        order = network_order(places)
        used = len(set(places))
        assert sorted(order) == list(range(40))
        assert order[0] == 0
        assert crossings([places[rank] for rank in order]) == (used if used > 1 else 0)


def test_a_better_order_is_reported_with_its_gain() -> None:
    [warning] = order_warnings([("a",), ("b",), ("a",), ("b",)])
    assert "4 of 4 edges of a ring cross a switch, 2 in the network's order: nodes 0, 2, 1, 3" in warning
    many = order_warnings([(str(rank % 2),) for rank in range(64)])
    assert "64 of 64" in many[0]
    assert "nodes" not in many[0].partition("(")[0].partition("order")[2]


@pytest.mark.parametrize(
    "places",
    [
        [("a",), ("a",), ("b",), ("b",)],
        [("a",), ("a",)],
        [("a",), ()],
        [(), ()],
        [("a",), ("b",)],
        [("a",), ("b",), ("c",)],
    ],
)
def test_an_order_that_cannot_be_better_is_no_word_worth(places: list[tuple[str, ...]]) -> None:
    assert order_warnings(places) == []
