"""Every cheap check, from facts to findings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from platform_launch.doctor import Level, examine
from platform_launch.doctor.checks.planned import plan_warnings
from platform_launch.doctor.finding import refuse
from platform_launch.errors import UnfitNodeError
from platform_launch.hardware import Gpus, Hardware, HcaPort, NicDistance, PciDistance
from platform_launch.hardware.names import ResolverAnswer
from platform_launch.hardware.packages import Module, TorchBuild
from platform_launch.hardware.ports import Port
from platform_launch.hardware.storage import BuildLock, Storage
from tests.doctor.cases import TWO_NODES, healthy, installed, named, only, planned, stored
from tests.health.devices import gpu, reading
from tests.plan.machines import machine, port

FULL = Storage(Path("/full"), 10.0, 0.0, 10**6)
TINY = Storage(Path("/dev/shm"), 64 / 1024, 60 / 1024, None)


def limited(hardware: Hardware, locked_memory_gib: float) -> Hardware:
    host = dataclasses.replace(hardware.host, locked_memory_gib=locked_memory_gib)
    return dataclasses.replace(hardware, host=host)


def with_driver(cuda: str) -> Hardware:
    eight = machine(8)
    return dataclasses.replace(eight, gpus=dataclasses.replace(eight.gpus, driver="470.1", cuda=cuda))


def roce(device: str, gids: tuple[tuple[int, str], ...]) -> HcaPort:
    return HcaPort(device, 1, True, "Ethernet", 200.0, gids)


def test_a_healthy_node_gives_no_finding() -> None:
    assert examine(healthy()) == []


def test_an_interface_that_no_node_has_stops_nccl_for_certain() -> None:
    finding = only(healthy({"NCCL_SOCKET_IFNAME": "bond0"}), "interface-unknown", Level.ERROR)
    assert "eth0, lo" in finding.what


def test_an_interface_not_meant_for_training_may_be_used_nevertheless() -> None:
    facts = healthy({"NCCL_SOCKET_IFNAME": "docker0"}, interfaces=frozenset({"lo", "eth0", "docker0"}))
    assert examine(facts) == []


def test_gloo_without_its_interface_is_a_warning() -> None:
    assert "ib0" in only(healthy({"GLOO_SOCKET_IFNAME": "ib0"}), "interface-unknown").what


def test_a_node_that_trains_alone_needs_no_interface() -> None:
    assert examine(healthy({"WORLD_SIZE": "1", "NCCL_SOCKET_IFNAME": "bond0"})) == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}, "NCCL_IB_HCA=mlx5 is not used"),
        ({"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "lo"}, "another network"),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, "10.0.0.1 is IPv4"),
        ({"OMP_NUM_THREADS": "64"}, "512 threads on 64 CPUs"),
    ],
)
def test_variables_that_contradict_each_other_are_named(variables: dict[str, str], said: str) -> None:
    assert said in only(healthy(variables), "variable-contradiction").what


def test_demanding_and_forbidding_infiniband_leaves_no_network() -> None:
    variables = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}
    assert "NCCL finds no network" in only(healthy(variables), "variable-contradiction", Level.ERROR).what


def test_debugging_left_on_is_named() -> None:
    assert "CUDA_LAUNCH_BLOCKING" in only(healthy({"CUDA_LAUNCH_BLOCKING": "1"}), "variable-debug-only").what
    assert examine(healthy({"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF"})) == []


def test_a_folder_is_no_library() -> None:
    facts = healthy()
    modules = {
        **facts.installation.modules,
        "deepspeed": Module("deepspeed", None, (Path("/repo/deepspeed"),)),
    }
    finding = only(installed(facts, modules=modules), "package-missing", Level.ERROR)
    assert "has no deepspeed (the folder /repo/deepspeed is not the library)" in finding.what


def test_what_the_shipped_training_lacks_comes_with_one_extra_and_a_script_of_ones_own_needs_less(
    tmp_path: Path,
) -> None:
    facts = healthy()
    lacking = {name: Module(name, None) for name in ("accelerate", "av", "pytorch_msssim")}
    modules = {**facts.installation.modules, **lacking}
    finding = only(installed(facts, modules=modules), "package-missing", Level.ERROR)
    assert "has no accelerate, av, pytorch_msssim" in finding.what
    assert re.search(r"-m pip install '.*\[train\]'", str(finding.hint))

    script = tmp_path / "train.py"
    script.touch()
    facts = healthy(plan=planned(TWO_NODES, machine(8), example=None, script=script))
    finding = only(installed(facts, modules=modules), "package-missing", Level.ERROR)
    assert finding.what.endswith("has no accelerate")
    assert "-m pip install accelerate," in finding.hint


@pytest.mark.parametrize("missing", [("accelerate",), ("torch", "accelerate")], ids=" ".join)
def test_where_accelerate_is_missing_the_launcher_that_needs_none_is_named(missing: tuple[str, ...]) -> None:
    facts = healthy()
    modules = {**facts.installation.modules, **{name: Module(name, None) for name in missing}}
    hint = only(installed(facts, modules=modules), "package-missing", Level.ERROR).hint
    assert "--launcher torchrun, which does without accelerate," in hint


def test_a_file_beside_the_script_hides_a_library() -> None:
    facts = installed(healthy(), import_folder=Path("/job"), shadowing=frozenset({"torch.py"}))
    assert "torch.py in /job" in only(facts, "package-shadowed").what


def test_a_torch_that_runs_code_from_checkpoints_is_named() -> None:
    old, new = (TorchBuild(f"{version}+cu126", "12.6", None) for version in ("2.9.1", "2.10.0"))
    assert "CVE-2026-24747" in only(installed(healthy(), torch=old), "torch-unsafe-load", Level.INFO).what
    assert not [one for one in examine(installed(healthy(), torch=new)) if one.id == "torch-unsafe-load"]


def test_packages_below_the_home_are_named() -> None:
    home = Path("/root/.local/lib/python3.11/site-packages")
    facts = healthy()
    modules = {**facts.installation.modules, "torch": Module("torch", home / "torch/__init__.py")}
    assert (
        "torch would be" in only(installed(facts, user_site=home, modules=modules), "package-user-site").what
    )


def test_the_active_environment_is_the_one_that_runs() -> None:
    finding = only(installed(healthy(), active=Path("/conda/envs/vae")), "interpreter-other-environment")
    assert "/conda/envs/vae" in finding.what


def test_a_torch_without_cuda_would_leave_gpus_idle() -> None:
    cpu = TorchBuild("2.11.0+cpu", None, None)
    only(installed(healthy(), torch=cpu), "torch-without-cuda")
    assert examine(installed(healthy(hardware=machine(0)), torch=cpu)) == []
    only(installed(healthy(), torch=TorchBuild("2.11.0+rocm6", None, "6.2")), "torch-other-vendor")


def test_a_torch_of_a_newer_cuda_than_the_driver_is_named() -> None:
    assert "up to 11.4" in only(healthy(hardware=with_driver("11.4")), "torch-newer-than-driver").what
    assert examine(healthy(hardware=with_driver("12.2"))) == []  # the same major release runs


def test_the_owner_of_the_port_is_named() -> None:
    taken = Port(29500, "Address already in use", True, ("pid 4711 (python old.py)",))
    finding = only(healthy(master_port=taken), "port-unusable", Level.ERROR)
    assert "in use by pid 4711 (python old.py)" in finding.what


def test_a_port_that_nobody_may_need_is_a_warning() -> None:
    taken = Port(29500, "Address already in use", True)
    alone = healthy({"WORLD_SIZE": "1"}, machine(0), master_port=taken)
    plan = dataclasses.replace(alone.plan, launcher="python")
    yaml_free = dataclasses.replace(plan, training=dataclasses.replace(plan.training, accelerate_yaml=None))
    only(dataclasses.replace(alone, plan=yaml_free), "port-unusable")


@pytest.mark.parametrize("clock_s", [0.0, 1.2e9, 9e9])
def test_a_clock_that_cannot_be_right_is_named(clock_s: float) -> None:
    only(healthy(clock_s=clock_s), "clock-wrong")


def test_a_lock_that_nobody_holds_is_stale() -> None:
    lock = BuildLock(Path("/ext/cpu_adam/lock"), 3 * 86400, held=False)
    finding = only(healthy(locks=(lock,)), "build-lock-stale")
    assert "3 days old" in finding.what or "72 hours" in finding.what
    assert "rm /ext/cpu_adam/lock" in finding.hint


def test_a_lock_in_use_or_just_made_is_not_stale() -> None:
    held = BuildLock(Path("/ext/a/lock"), 600, held=True)
    fresh = BuildLock(Path("/ext/b/lock"), 5, held=False)
    assert examine(healthy(locks=(held, fresh))) == []


def test_results_that_cannot_be_written_are_an_error_only_where_they_were_promised() -> None:
    full = stored(healthy(), output=FULL)
    only(full, "disk-low")
    only(dataclasses.replace(full, named_folders=frozenset({"output"})), "disk-low", Level.ERROR)


def test_a_file_system_is_named_once_for_all_its_folders() -> None:
    only(stored(healthy(), logs=FULL, output=FULL, temporary=FULL), "disk-low")


def test_a_log_that_cannot_be_written_does_not_stop_a_training() -> None:
    read_only = dataclasses.replace(FULL, problem="/full is mounted read-only")
    assert "--log-dir" in only(stored(healthy(), logs=read_only), "folder-not-writable").hint


def test_a_disk_out_of_files_is_named() -> None:
    few = Storage(Path("/data"), 1000.0, 500.0, 3)
    only(stored(healthy(), output=few), "inodes-low")


def test_64_mib_of_shared_memory_are_too_little_for_gpus() -> None:
    assert "60 MiB are free" in only(stored(healthy(), shm=TINY), "shm-small").what
    assert examine(stored(healthy(hardware=machine(0)), shm=TINY)) == []


def test_shared_memory_is_measured_by_what_the_config_of_the_training_takes() -> None:
    eight = Storage(Path("/dev/shm"), 8.0, 7.9, None)
    found = only(stored(healthy(), shm=eight), "shm-small")
    assert "this job needs 9.9 GiB" in found.what
    assert "--shm-size=20g" in found.hint
    assert "num_workers" in found.hint


def test_shared_memory_that_ended_runs_fill_is_to_be_cleaned() -> None:
    filled = Storage(Path("/dev/shm"), 16.0, 0.1, None)
    assert "remove leftovers of earlier runs" in only(stored(healthy(), shm=filled), "shm-small").hint


def test_locked_memory_counts_only_for_rdma_without_privilege() -> None:
    node = limited(machine(8, hca_ports=(port("mlx5_0"),)), 64 / 1024**2)
    only(healthy(hardware=node, exempt_from_memlock=False), "memlock-low")
    assert examine(healthy({"NCCL_NET": "Socket"}, node, exempt_from_memlock=False)) == []
    assert examine(healthy(hardware=node, exempt_from_memlock=True)) == []
    assert examine(healthy(hardware=limited(machine(8), 64 / 1024**2), exempt_from_memlock=False)) == []


def test_a_node_without_memory_left_is_named() -> None:
    assert "2.0 GiB" in only(healthy(available_memory_gib=2.0), "memory-low").what


def test_an_own_name_that_means_loopback_misleads_gloo() -> None:
    nowhere = machine(8, route=None)
    loopback = named(healthy(hardware=nowhere), own=ResolverAnswer("node0", ("127.0.1.1",)))
    assert "127.0.1.1" in only(loopback, "hostname-loopback").what
    # GLOO_SOCKET_IFNAME, set from the route, makes the name unimportant.
    assert examine(named(healthy(), own=ResolverAnswer("node0", ("127.0.1.1",)))) == []


def test_an_own_name_that_does_not_resolve_misleads_gloo() -> None:
    unknown = named(
        healthy(hardware=machine(8, route=None)), own=ResolverAnswer("node0", failure="Name not known")
    )
    only(unknown, "hostname-unresolved")


def test_a_master_whose_name_may_still_come_is_a_warning() -> None:
    missing = named(healthy(), master=ResolverAnswer("10.0.0.1", failure="Name or service not known"))
    assert "Name or service not known" in only(missing, "master-unresolved").what


def test_node_0_is_told_when_the_master_is_elsewhere() -> None:
    elsewhere = named(healthy(), master=ResolverAnswer("10.0.0.1", ("10.9.9.9",)))
    assert "10.9.9.9" in only(elsewhere, "master-elsewhere").what


def test_another_node_whose_master_is_itself_is_told() -> None:
    found = only(healthy({"RANK": "1"}), "master-is-this-node")
    assert "this is node 1, but the master '10.0.0.1' (MASTER_ADDR) is this machine itself" in found.what
    assert examine(named(healthy({"RANK": "1"}), master=ResolverAnswer("10.0.0.1", ("10.0.0.9",)))) == []


def test_a_master_that_is_this_node_s_name_is_this_node() -> None:
    """MASTER_ADDR=$(hostname) on each node, where Debian and Docker give the name a loopback address."""
    by_name = named(healthy({"RANK": "1"}), master=ResolverAnswer("gn1", ("127.0.1.1",)))
    assert (
        "the master 'gn1' (MASTER_ADDR) is this machine itself" in only(by_name, "master-is-this-node").what
    )
    for on_purpose in ("localhost", "127.0.0.1"):
        here = named(healthy({"RANK": "1"}), master=ResolverAnswer(on_purpose, ("127.0.0.1",)))
        assert examine(here) == []


def test_gpus_whose_adapter_is_on_the_other_socket_are_named() -> None:
    ports = (port("mlx5_0"), port("mlx5_1"))
    near = [NicDistance(gpu, "mlx5_0", PciDistance.PIX if gpu < 4 else PciDistance.SYS) for gpu in range(8)]
    far = [NicDistance(gpu, "mlx5_1", PciDistance.SYS if gpu < 4 else PciDistance.NODE) for gpu in range(8)]
    one = dataclasses.replace(machine(8, hca_ports=ports[:1]), nic_distances=tuple(near))
    found = only(healthy(hardware=one), "rdma-other-socket")
    assert "for GPUs 4, 5, 6, 7 (GPU 0: mlx5_0 PIX" in found.what
    both = dataclasses.replace(machine(8, hca_ports=ports), nic_distances=(*near, *far))
    assert examine(healthy(hardware=both)) == []


@pytest.mark.parametrize(
    "env", [{"NCCL_SOCKET_IFNAME": "lo"}, {"NCCL_SOCKET_IFNAME": "=lo", "GLOO_SOCKET_IFNAME": "lo"}]
)
def test_the_loopback_reaches_no_other_host(env: dict[str, str]) -> None:
    assert "no other host" in only(healthy(env), "interface-loopback").what
    assert examine(healthy({**env, "MASTER_ADDR": "127.0.0.1"})) == []
    assert examine(healthy({**env, "WORLD_SIZE": "1"}, master_name=None, reverse_name=None)) == []


def of_vendor(vendor: str) -> Hardware:
    found = machine(8)
    devices = tuple(dataclasses.replace(gpu, vendor=vendor) for gpu in found.gpus.devices)
    return dataclasses.replace(found, gpus=dataclasses.replace(found.gpus, devices=devices))


def test_a_torch_of_another_vendor_is_named() -> None:
    amd = of_vendor("amd")
    found = only(healthy(hardware=amd), "torch-other-vendor")
    assert "was built for CUDA: this node's 8 × AMD GPU would not be used" in found.what
    rocm = TorchBuild("2.11.0+rocm6", None, "6.2")
    assert examine(installed(healthy(hardware=amd), torch=rocm)) == []
    npus = of_vendor("ascend")
    assert "has no torch_npu" in only(healthy(hardware=npus), "torch-other-vendor").what


def test_a_node_without_a_route_to_the_master_is_told() -> None:
    lost = named(
        healthy({"RANK": "1"}, machine(8, route=None), master_port=None),
        master=ResolverAnswer("10.9.9.9", ("10.9.9.9",)),
    )
    only(lost, "master-no-route")


def test_a_name_server_without_reverse_answers_is_named() -> None:
    only(named(healthy(), reverse=ResolverAnswer("10.0.0.1", late=True)), "reverse-dns-slow")
    assert (
        examine(named(healthy(), reverse=ResolverAnswer("10.0.0.1", failure="no name"))) == []
    )  # a quick no


def test_an_infiniband_port_that_is_down_is_named() -> None:
    ports = (port("mlx5_0"), port("mlx5_1", active=False))
    assert "mlx5_1:1" in only(healthy(hardware=machine(8, hca_ports=ports)), "rdma-port-down").what
    unplugged = (port("mlx5_0"), port("mlx5_1", active=False, layer="Ethernet"))
    assert examine(healthy(hardware=machine(8, hca_ports=unplugged))) == []


def test_a_gid_index_that_no_port_has_fails_for_certain() -> None:
    ports = (roce("mlx5_0", ((0, "IB/RoCE v1"), (1, "RoCE v2"))), roce("mlx5_1", ((1, "RoCE v2"),)))
    node = machine(8, hca_ports=ports)
    finding = only(healthy({"NCCL_IB_GID_INDEX": "3"}, node), "rdma-gid-missing", Level.ERROR)
    assert "0 (IB/RoCE v1), 1 (RoCE v2)" in finding.what
    only(healthy({"NCCL_IB_GID_INDEX": "0"}, node), "rdma-gid-missing")
    assert examine(healthy({"NCCL_IB_GID_INDEX": "1"}, node)) == []


def test_a_roce_port_without_an_address_is_named() -> None:
    node = machine(8, hca_ports=(roce("mlx5_0", ((0, "IB/RoCE v1"),)),))
    only(healthy(hardware=node), "rdma-gid-missing")


def test_adapters_that_are_not_here_leave_nccl_with_sockets() -> None:
    node = machine(8, hca_ports=(port("mlx5_0"),))
    assert "mlx5_0:1" in only(healthy({"NCCL_IB_HCA": "=mlx5_7"}, node), "rdma-hca-unknown").what


def test_the_plans_warnings_become_findings_of_the_room_they_come_from() -> None:
    occupied = dataclasses.replace(
        machine(8), gpus=Gpus(machine(8).gpus.devices, warnings=("GPU 0 is in use",))
    )
    occupied = dataclasses.replace(occupied, warnings=("no verbs",))
    variables = {
        "NCCL_TIMEOUT": "600",
        "NCCL_ALGO": "Ring",
        "NCCL_BLOCKING_WAIT": "1",
        "NCCL_IB_GDR_LEVEL": "3",
        "NCCL_MAX_NCHANNELS": "8",
        "NCCL_MADE_UP": "1",
    }
    facts = healthy(variables, occupied)
    found = {finding.id: finding for finding in plan_warnings(facts)}
    assert set(found) == {
        "gpu",
        "rdma-no-device",
        "variable-dead",
        "variable-debug-only",
        "variable-deprecated",
        "variable-renamed",
        "variable-unknown",
        "variable-unread",
    }
    assert len(list(plan_warnings(facts))) == len(facts.plan.warnings)


def test_no_warning_of_a_plan_is_lost() -> None:
    scaled: dict[str, Any] = {"WORLD_SIZE": "1", "NPROC_PER_NODE": "3"}
    facts = healthy(scaled)
    assert facts.plan.warnings
    assert [finding.what for finding in plan_warnings(facts)] == [
        warning.text for warning in facts.plan.warnings
    ]


def test_a_gpu_that_has_failed_refuses_the_launch_and_a_worn_one_only_warns() -> None:
    bad, worn = gpu(3, recovery_action=1), gpu(4, rows_pending=True)
    found = examine(healthy(devices=reading(bad, worn)))
    assert [(finding.id, finding.level, finding.where) for finding in found] == [
        ("gpu-recovery-action", Level.ERROR, "GPU 3"),
        ("gpu-rows-pending", Level.WARNING, "GPU 4"),
    ]
    with pytest.raises(UnfitNodeError):
        refuse(found)
