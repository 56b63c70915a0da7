"""InfiniBand and RoCE ports of recorded machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.hardware import HcaPort, rdma
from tests.hardware import trees


def test_h100_node_has_seven_active_infiniband_ports_and_one_down(tmp_path: Path) -> None:
    ports = rdma.find(trees.h100_infiniband(tmp_path).sys)
    infiniband = [port for port in ports if port.link_layer == "InfiniBand"]
    assert [port.device for port in infiniband if port.active] == [
        f"mlx5_{n}" for n in (0, 3, 4, 5, 6, 9, 11)
    ]
    assert {port.rate_gbps for port in infiniband if port.active} == {400.0}
    [down] = [port for port in ports if not port.active]
    assert down.device == "mlx5_10"


def test_h100_nodes_storage_adapter_is_told_apart_by_its_link_layer(tmp_path: Path) -> None:
    ports = rdma.find(trees.h100_infiniband(tmp_path).sys)
    assert [(port.device, port.rate_gbps) for port in ports if port.link_layer == "Ethernet"] == [
        ("mlx5_1", 100.0)
    ]


def test_adapters_come_in_numeric_order(tmp_path: Path) -> None:
    names = [port.device for port in rdma.find(trees.h100_infiniband(tmp_path).sys)]
    assert names == [f"mlx5_{n}" for n in (0, 1, 3, 4, 5, 6, 9, 10, 11)]


def test_roce_node_lists_only_gids_that_are_in_use(tmp_path: Path) -> None:
    ports = rdma.find(trees.roce_bond(tmp_path).sys)
    types = ((0, "IB/RoCE v1"), (1, "RoCE v2"), (2, "IB/RoCE v1"), (3, "RoCE v2"))
    assert ports[0] == HcaPort("mlx5_bond_0", 1, True, "Ethernet", 200.0, types)
    assert [port.device for port in ports] == [f"mlx5_bond_{n}" for n in range(4)]


def test_a_gid_whose_type_cannot_be_read_keeps_its_index(tmp_path: Path) -> None:
    roots = trees.roce_bond(tmp_path)
    (roots.sys / "class/infiniband/mlx5_bond_0/ports/1/gid_attrs/types/3").unlink()
    assert rdma.find(roots.sys)[0].gids[-1] == (3, "")


def test_a_machine_without_adapters_has_no_ports(tmp_path: Path) -> None:
    assert rdma.find(trees.bare_pod(tmp_path).sys) == ()


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("400 Gb/sec (4X NDR)", 400.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("56 Gb/sec (4X FDR)", 56.0),
        ("", None),
        ("unknown", None),
        ("fast Gb/sec", None),
    ],
)
def test_rates_are_read_in_gigabits(text: str, gbps: float | None) -> None:
    assert rdma.parse_rate(text) == gbps
