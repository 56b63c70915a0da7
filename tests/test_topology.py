"""The invariants of a Topology."""

from __future__ import annotations

import pytest

from platform_launch.errors import TopologyError
from platform_launch.topology import Topology


def topology(nnodes: int = 2, node_rank: int = 1, nproc_per_node: int | None = None) -> Topology:
    return Topology("slurm", nnodes, node_rank, "n1", 29500, nproc_per_node, sources={"nnodes": "--nnodes"})


def test_the_world_is_nodes_times_processes() -> None:
    assert topology(nproc_per_node=8).world_size == 16


def test_the_world_is_unknown_until_processes_are_counted() -> None:
    assert topology().world_size is None


def test_node_0_is_the_master() -> None:
    assert topology(node_rank=0).is_master
    assert not topology(node_rank=1).is_master


@pytest.mark.parametrize("node_rank", [-1, 2])
def test_a_rank_outside_the_job_is_refused_with_its_sources(node_rank: int) -> None:
    with pytest.raises(TopologyError, match=r"expected 0–1") as caught:
        topology(node_rank=node_rank)
    assert "--nnodes" in caught.value.message


def test_a_job_without_nodes_is_refused() -> None:
    with pytest.raises(TopologyError, match="at least 1"):
        topology(nnodes=0, node_rank=0)


def test_a_node_without_processes_is_refused() -> None:
    with pytest.raises(TopologyError, match="nproc_per_node=0"):
        topology(nproc_per_node=0)


def test_the_json_form_names_every_field() -> None:
    assert topology(nproc_per_node=8).as_dict() == {
        "platform": "slurm",
        "level": "node",
        "nnodes": 2,
        "node_rank": 1,
        "master_addr": "n1",
        "master_port": 29500,
        "nproc_per_node": 8,
        "world_size": 16,
        "hosts": [],
        "spares": 0,
        "min_nodes": None,
        "missing": 0,
        "job_id": None,
        "restart_count": None,
        "sources": {"nnodes": "--nnodes"},
        "warnings": [],
    }
