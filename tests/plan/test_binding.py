"""Which CPUs each rank gets, on recorded machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.hardware import Gpu, Gpus, Hardware, Host, numa
from platform_launch.hardware.numa import Numa, NumaNode, cpu_ranges, parse_cpus
from platform_launch.plan.binding import Binding, bind
from tests.hardware import trees


def machine(
    root: Path,
    nodes: dict[int, str],
    devices: list[int],
    *,
    allowed: str,
    sockets: dict[int, int] | None = None,
    smt: int = 0,
) -> Hardware:
    """A machine with one GPU for each entry of ``devices``, which is its NUMA node (-1: unknown)."""
    trees.machine(root, cpus=allowed)
    trees.numa(root, nodes, sockets=sockets, smt=smt)
    addresses = [f"0000:{16 + index:02x}:00.0" for index in range(len(devices))]
    trees.near(root, dict(zip(addresses, devices, strict=True)))
    gpus = tuple(Gpu(index, "GPU", 80.0, "", pci=address) for index, address in enumerate(addresses))
    found = numa.find(addresses, sys_root=root / "sys", proc_root=root / "proc")
    host = Host("node", len(parse_cpus(allowed)), 512.0, 256.0, None)
    return Hardware(Gpus(gpus), (), (), host, numa=found)


def bound(
    hardware: Hardware, mode: str = "auto", nproc: int = 8, env: dict[str, str] | None = None
) -> Binding:
    return bind(mode, Environment(env or {}), hardware, nproc, ranks_known=True)


TWO_SOCKETS = {0: "0-55,112-167", 1: "56-111,168-223"}
EIGHT = [0, 0, 0, 0, 1, 1, 1, 1]


def dgx(root: Path, allowed: str = "0-223", devices: list[int] | None = None) -> Hardware:
    return machine(root, TWO_SOCKETS, EIGHT if devices is None else devices, allowed=allowed, smt=112)


def test_each_rank_gets_the_cpus_of_its_gpus_node(tmp_path: Path) -> None:
    found = bound(dgx(tmp_path))
    assert (found.mode, found.share) == ("node", 28)
    assert found.shown == "0-3: 0-55,112-167; 4-7: 56-111,168-223"
    [variable] = found.variables()
    assert variable.value == ";".join(["0-55,112-167"] * 4 + ["56-111,168-223"] * 4)


def test_exclusive_shares_a_node_evenly_and_keeps_hyperthreads_together(tmp_path: Path) -> None:
    found = bound(dgx(tmp_path), "exclusive")
    assert [cpu_ranges(cpus) for cpus in found.ranks[:2]] == ["0-13,112-125", "14-27,126-139"]
    assert len({cpu for cpus in found.ranks for cpu in cpus}) == 224
    for cpus in found.ranks:
        assert {cpu % 112 for cpu in cpus if cpu >= 112} == {cpu for cpu in cpus if cpu < 112}


def test_gb200s_memory_nodes_have_no_cpus_to_bind_to(tmp_path: Path) -> None:
    nodes = {0: "0-71", 1: "72-143", 2: "", 10: "", 18: "", 26: ""}
    found = bound(machine(tmp_path, nodes, [0, 0, 1, 1], allowed="0-143"), nproc=4)
    assert found.shown == "0-1: 0-71; 2-3: 72-143"


def test_with_sub_numa_clustering_the_socket_is_shared(tmp_path: Path) -> None:
    nodes = {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"}
    sockets = {0: 0, 1: 0, 2: 1, 3: 1}
    # All GPUs of a socket in one corner of it: that node alone would be half of what they had unbound.
    corner = machine(tmp_path / "a", nodes, [0, 0, 2, 2], allowed="0-63", sockets=sockets)
    found = bound(corner, nproc=4)
    assert (found.shown, found.reason) == ("0-1: 0-31; 2-3: 32-63", "near its device: the socket")
    spread = machine(tmp_path / "b", nodes, [0, 1, 2, 3], allowed="0-63", sockets=sockets)
    assert bound(spread, nproc=4).shown == "0: 0-15; 1: 16-31; 2: 32-47; 3: 48-63"


@pytest.mark.parametrize(
    ("allowed", "devices", "reason"),
    [
        ("0-55", EIGHT, "one NUMA node"),  # a cpuset, Slurm or the static policy left one socket
        ("0-55,56-59", EIGHT, "a rank would get fewer CPUs than unbound"),
        ("0-223", [0] * 8, "a rank would get fewer CPUs than unbound"),
        ("0-223", [-1] * 8, "the NUMA nodes of the devices are not known"),
        ("0-223", [], "the NUMA nodes of the devices are not known"),
    ],
)
def test_nothing_is_bound_where_that_would_take_cpus_away(
    allowed: str, devices: list[int], reason: str, tmp_path: Path
) -> None:
    found = bound(dgx(tmp_path, allowed, devices))
    assert (found.ranks, found.reason, found.variables()) == ((), reason, [])


@pytest.mark.parametrize("allowed", ["0-223", "0-27,56-83", "0-55,112-167,56-111,168-223", "4-19,60-75"])
@pytest.mark.parametrize("mode", ["node", "exclusive"])
def test_a_bound_rank_never_has_fewer_cpus_than_its_even_share(
    allowed: str, mode: str, tmp_path: Path
) -> None:
    found = bound(dgx(tmp_path, allowed), mode)
    cpus = parse_cpus(allowed)
    assert len(found.ranks) == 8
    for mine in found.ranks:
        assert len(mine) >= len(cpus) // 8
        assert set(mine) <= set(cpus)


@pytest.mark.parametrize(
    ("cpus", "smt", "nproc", "shown", "share"),
    [
        ("0-3", 2, 4, "", None),  # two cores for four ranks: one would get nothing
        ("0", 0, 2, "", None),
        ("0-13", 7, 4, "0: 0,7; 1: 1-2,8-9; 2: 3-4,10-11; 3: 5-6,12-13", 2),
        ("0-7", 4, 2, "0: 0-1,4-5; 1: 2-3,6-7", 4),
    ],
)
def test_exclusive_leaves_no_rank_without_a_core(
    cpus: str, smt: int, nproc: int, shown: str, share: int | None, tmp_path: Path
) -> None:
    cores = [(cpu, cpu + smt) if smt else (cpu,) for cpu in parse_cpus(cpus)[: smt or None]]
    node = Numa((NumaNode(0, 0, tuple(cores)),))
    found = bound(replace(dgx(tmp_path), gpus=Gpus(), numa=node), "exclusive", nproc)
    assert (found.shown, found.share) == (shown, share)
    if not shown:
        assert found.reason == "a rank would get fewer CPUs than unbound"


def test_one_numa_node_is_bound_only_when_asked(tmp_path: Path) -> None:
    small = machine(tmp_path, {0: "0-15"}, [0, 0], allowed="0-15")
    assert bound(small, nproc=2).reason == "one NUMA node"
    assert bound(small, "exclusive", nproc=2).shown == "0: 0-7; 1: 8-15"


@pytest.mark.parametrize("name", ["OMP_PLACES", "GOMP_CPU_AFFINITY", "ACCELERATE_CPU_AFFINITY"])
def test_a_binding_of_somebody_else_is_left_alone(name: str, tmp_path: Path) -> None:
    hardware = dgx(tmp_path)
    assert bound(hardware, env={name: "1"}).reason == f"{name} binds already"
    assert bound(hardware, env={name: "0"}).ranks
    assert bound(hardware, "node", env={name: "1"}).ranks
    assert bound(hardware, "none").reason == "--bind none"


def test_processes_of_a_cpu_job_are_spread_over_the_nodes_when_asked(tmp_path: Path) -> None:
    assert bound(dgx(tmp_path, devices=[]), "node", nproc=2).shown == "0: 0-55,112-167; 1: 56-111,168-223"


def test_a_process_that_uses_the_whole_node_is_not_bound(tmp_path: Path) -> None:
    found = bind("node", Environment({}), dgx(tmp_path), 8, ranks_known=False)
    assert found.ranks == ()


@pytest.mark.parametrize("ranges", ["0-3,8", "0", "", "1-2,5-9,200"])
def test_cpus_are_written_as_they_are_read(ranges: str) -> None:
    assert cpu_ranges(parse_cpus(ranges)) == ranges
