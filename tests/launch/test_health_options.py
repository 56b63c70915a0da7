from __future__ import annotations

import pytest

from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.launch.training_command import health_options
from tests.doctor.cases import healthy
from tests.plan.machines import machine, port

PORTS = (port("mlx5_0"), port("mlx5_1"), port("mlx5_bond_0", layer="Ethernet"))


def watched(hardware: Hardware, env: dict[str, str]) -> list[str]:
    plan = healthy(env, hardware).plan
    options = health_options(plan, Environment(env, hostname="gn0"), 60.0)
    return [port.device for port in options.ports]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ["mlx5_0", "mlx5_1"]),
        ({"NCCL_IB_HCA": "=mlx5_1"}, ["mlx5_1"]),
        ({"NCCL_IB_DISABLE": "0"}, ["mlx5_0", "mlx5_1"]),
        ({"NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_NET": "Socket"}, []),
    ],
)
def test_the_ports_that_are_watched_are_those_that_carry_the_training(
    env: dict[str, str], expected: list[str]
) -> None:
    assert watched(machine(8, hca_ports=PORTS), env) == expected


def test_a_training_on_cpus_is_not_unfit_for_a_port_that_only_gpus_would_use() -> None:
    assert watched(machine(0, hca_ports=PORTS), {}) == []


def test_a_gb200_with_a_port_that_went_down_is_not_unfit_where_its_traffic_uses_tcp() -> None:
    gb200 = machine(4, name="NVIDIA GB200", hca_ports=PORTS)
    assert watched(gb200, {}) == []
    assert watched(gb200, {"NCCL_IB_DISABLE": "0"}) == ["mlx5_0", "mlx5_1"]
