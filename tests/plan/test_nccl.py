from __future__ import annotations

import pytest

from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.plan.nccl import exact_interface, nccl_variables, selects, training_ports
from platform_launch.topology import Topology
from tests.plan.machines import job, machine, port


def chosen(
    hardware: Hardware, env: dict[str, str] | None = None, topology: Topology | None = None
) -> dict[str, str]:
    variables = nccl_variables(Environment(env or {}), topology or job(), hardware, "/logs/flight_rank")
    assert all(variable.reason for variable in variables)
    return {variable.name: variable.value for variable in variables}


def test_sockets_use_the_interface_on_the_route_to_the_master_by_exact_name() -> None:
    env = chosen(machine(8, interfaces=("eth0", "eth01"), route="eth0"))
    assert env["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_an_interface_the_platform_recommends_comes_before_the_route() -> None:
    topology = job(interface="eth7", sources={"interface": "SM_NETWORK_INTERFACE_NAME"})
    assert chosen(machine(8), topology=topology)["NCCL_SOCKET_IFNAME"] == "=eth7"


def test_gloo_follows_the_interface_that_the_user_chose_for_nccl() -> None:
    env = chosen(machine(8, interfaces=("eth0", "ens5")), {"NCCL_SOCKET_IFNAME": "ens"})
    assert "NCCL_SOCKET_IFNAME" not in env
    assert env["GLOO_SOCKET_IFNAME"] == "ens5"


def test_one_node_needs_no_interface_and_no_infiniband() -> None:
    env = chosen(machine(8, hca_ports=(port("mlx5_0"),)), topology=job(nnodes=1))
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"} & set(env)


def test_a_cpu_machine_gets_gloo_alone() -> None:
    assert chosen(machine(0)) == {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}


def test_hcas_are_the_active_infiniband_ports_named_exactly() -> None:
    ports = (
        port("mlx5_0"),
        port("mlx5_1", active=False),
        port("mlx5_10"),
        port("mlx5_bond_0", layer="Ethernet"),
    )
    assert chosen(machine(8, hca_ports=ports))["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_10:1"


def test_slow_ports_of_a_roce_machine_are_left_to_storage() -> None:
    ports = (
        port("mlx5_2", layer="Ethernet", rate=25.0),
        port("mlx5_3", layer="Ethernet", rate=200.0),
    )
    assert [p.device for p in training_ports(ports)] == ["mlx5_3"]


def test_infiniband_stays_on_where_it_works_and_off_on_gb200() -> None:
    ports = (port("mlx5_0"),)
    assert "NCCL_IB_DISABLE" not in chosen(machine(8, hca_ports=ports))
    gb200 = machine(4, name="NVIDIA GB200", hca_ports=ports)
    assert chosen(gb200)["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_DISABLE" not in chosen(gb200, {"NCCL_IB_DISABLE": "0"})


@pytest.mark.parametrize(
    "name", ["NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_DEBUG", "TORCH_FR_BUFFER_SIZE", "NCCL_SOCKET_IFNAME"]
)
def test_what_the_platform_set_is_never_overwritten(name: str) -> None:
    hardware = machine(8, hca_ports=(port("mlx5_0"),))
    assert name in chosen(hardware)
    assert name not in chosen(hardware, {name: "theirs"})


def test_no_debugging_variable_is_set_by_default() -> None:
    from platform_launch.plan.known_variables import DEBUG_ONLY, lookup

    hardware = machine(8, hca_ports=(port("mlx5_0"),))
    assert [name for name in chosen(hardware) if lookup(DEBUG_ONLY, name)] == []


def test_the_flight_recorder_is_on_under_both_names() -> None:
    env = chosen(machine(8))
    assert env["TORCH_FR_BUFFER_SIZE"] == env["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/logs/flight_rank"
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_jobs_that_share_a_node_get_different_status_ports() -> None:
    first = chosen(machine(8), topology=job(master_port=29500))["NCCL_RAS_ADDR"]
    second = chosen(machine(8), topology=job(master_port=29600))["NCCL_RAS_ADDR"]
    assert first != second


def test_an_ipv6_master_asks_for_ipv6_sockets() -> None:
    assert chosen(machine(8), topology=job(master_addr="fd00::1"))["NCCL_SOCKET_FAMILY"] == "AF_INET6"


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("eth", "eth0"),
        ("=eth", None),
        ("=eth1,eth0", "eth0"),
        ("^eth", "ib0"),
        ("^=eth0", "ib0"),
        ("bond", None),
        ("=lo", "lo"),
        ("^lo", "eth0"),
    ],
)
def test_nccl_interface_patterns_are_read_as_nccl_reads_them(pattern: str, selected: str | None) -> None:
    assert exact_interface(pattern, machine(interfaces=("eth0", "ib0"))) == selected


def gb200(*interfaces: str, assumed: bool = False, route: str | None = "eth0") -> Hardware:
    return machine(4, name="NVIDIA GB200", interfaces=interfaces, route=route, assumed=assumed)


@pytest.mark.parametrize(
    ("hardware", "nccl", "gloo"),
    [
        (gb200("eth0", "enP6p3s0f0np0", "enP22p3s0f0np0"), "=enP22p3s0f0np0,enP6p3s0f0np0", "enP22p3s0f0np0"),
        (gb200("eth0", "enP6p3s0f0np0", "enP9", route="enP9"), "=enP9,enP6p3s0f0np0", "enP9"),
        (gb200("eth0", assumed=True), "=enP22p3s0f0np0,enP6p3s0f0np0", "enP22p3s0f0np0"),
        (gb200("eth0"), "=eth0", "eth0"),
    ],
)
def test_a_gb200_speaks_over_its_fast_ethernet_ports(hardware: Hardware, nccl: str, gloo: str) -> None:
    env = chosen(hardware)
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == (nccl, gloo)
    assert "NCCL_SOCKET_IFNAME" not in chosen(hardware, {"NCCL_SOCKET_IFNAME": "eth0"})


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_1:1,mlx5_2:1", ["mlx5_1", "mlx5_2"]),
        ("mlx5_1:2", []),
        ("^=mlx5_1", ["mlx5_2", "mlx5_10"]),
    ],
)
def test_hcas_are_selected_as_nccl_does(chosen: str, taken: list[str]) -> None:
    ports = [port(device) for device in ("mlx5_1", "mlx5_2", "mlx5_10")]
    assert [p.device for p in ports if selects(chosen, p)] == taken


def test_gloo_does_not_follow_nccl_to_the_loopback() -> None:
    env = chosen(machine(8), {"NCCL_SOCKET_IFNAME": "lo"})
    assert "GLOO_SOCKET_IFNAME" not in env
