"""Ranks against the network they run on."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.plan.network_order import compare_orders, crossings, network_order, order_of_job
from platform_launch.platforms.switches import NETWORK_VARIABLE, place_of, places_of
from platform_launch.topology import Topology
from tests.hardware.trees import write

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
    found = compare_orders([("a",), ("b",), ("a",), ("b",)])
    assert found is not None
    assert "4 of 4 edges of a ring cross a switch, 2 in the network's order: nodes 0, 2, 1, 3" in str(
        found.warning
    )
    many = compare_orders([(str(rank % 2),) for rank in range(64)])
    assert many is not None
    assert "64 of 64" in str(many.warning)
    assert "nodes" not in str(many.warning).partition("(")[0].partition("order")[2]


@pytest.mark.parametrize(
    "places",
    [
        [("a",), ("a",), ("b",), ("b",)],
        [("a",), ("a",)],
        [("a",), ("b",)],
        [("a",), ("b",), ("c",)],
    ],
)
def test_an_order_that_cannot_be_better_is_not_reported(places: list[tuple[str, ...]]) -> None:
    found = compare_orders(places)
    assert found is not None
    assert found.warning is None


@pytest.mark.parametrize("places", [[], [("a",), ()], [(), ()]])
def test_orders_are_not_compared_if_the_switches_of_a_node_are_unknown(places: list[tuple[str, ...]]) -> None:
    assert compare_orders(places) is None


TREE = """\
# Two racks below one switch.
SwitchName=rack1 Nodes=gpu[1,3] LinkSpeed=900
switchname=rack2 \\
  nodes=gpu[2,4-5]   # the second rack
SwitchName=core Switches=rack[1-2]
"""
BLOCKS = "BlockName=b1 Nodes=gpu[1,3]\nBlockName=b2 Nodes=gpu[2,4]\nBlockSizes=2\n"
FOUR = ("gpu1", "gpu2", "gpu3", "gpu4")


@pytest.mark.parametrize(
    ("conf", "places"),
    [
        (TREE, (("core", "rack1"), ("core", "rack2"), ("core", "rack1"), ("core", "rack2"))),
        (BLOCKS, (("b1",), ("b2",), ("b1",), ("b2",))),
        ("SwitchName=s Nodes=gpu[1-3]\n", ()),  # gpu4 is not in it
        ("SwitchName=s Nodes=gpu[1-\n", ()),
        (
            "SwitchName=a Nodes=gpu[1-4]\nSwitchName=b Switches=a\nSwitchName=a Switches=b\n",
            (("b", "a"),) * 4,
        ),
        ("", ()),
    ],
)
def test_slurms_topology_conf_places_all_hosts(
    conf: str, places: tuple[tuple[str, ...], ...], tmp_path: Path
) -> None:
    write(tmp_path / "etc/slurm/topology.conf", conf)
    assert places_of(Environment({}, root=tmp_path), FOUR) == places


def test_topology_conf_is_beside_slurm_conf_and_counts_only_without_topology_yaml(tmp_path: Path) -> None:
    write(tmp_path / "opt/etc/topology.conf", BLOCKS)
    assert places_of(Environment({}, root=tmp_path), FOUR) == ()
    env = Environment({"SLURM_CONF": "/opt/etc/slurm.conf"}, root=tmp_path)
    assert len(places_of(env, FOUR)) == 4
    write(tmp_path / "opt/etc/topology.yaml", "")
    assert places_of(env, FOUR) == ()


def slurm_job(hosts: tuple[str, ...], nnodes: int) -> Topology:
    return Topology("slurm", nnodes, 0, hosts[0], 29500, hosts=hosts)


def test_one_node_of_a_slurm_job_compares_the_orders_alone(tmp_path: Path) -> None:
    write(tmp_path / "etc/slurm/topology.conf", TREE)
    env = Environment({}, root=tmp_path)
    found = order_of_job(env, slurm_job((*FOUR, "gpu5"), 4))  # gpu5 is a spare
    assert found is not None
    assert found.as_dict() == {"edges": 4, "crossings": 4, "best": 2, "order": [0, 2, 1, 3]}
    assert order_of_job(env, slurm_job(FOUR[:3], 3)) is None
    assert order_of_job(env, replace(slurm_job(FOUR, 4), platform="pbs")) is None
