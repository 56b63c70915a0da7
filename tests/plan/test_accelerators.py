"""What is planned on the devices of each vendor, and where nobody can use what somebody reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import HardwareError, TopologyError
from platform_launch.hardware import Hardware, detect
from platform_launch.hardware.visible import narrow
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.topology import Overrides
from tests.hardware import trees
from tests.hardware.trees import Roots, write
from tests.lab.nvml import fake
from tests.plan.machines import machine
from tests.plan.test_launch_plan import TWO_NODES, request

pytestmark = fake.without_driver

FORCES_THE_CPU = {"ACCELERATE_USE_CPU", "DS_ACCELERATOR", "JAX_PLATFORMS"}
SCRIPT = Path(__file__)


def plan(
    env: dict[str, str], roots: Roots | None = None, assume: str | None = None, **changes: object
) -> LaunchPlan:
    environment = Environment(env, hostname="host", address="10.0.0.7")
    roots = roots or Roots(Path("/sys"), Path("/proc"), Path("/dev"))
    found: Hardware = detect(
        environment, assume=assume, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev
    )
    hardware = replace(found, interfaces=machine().interfaces, route_interface="eth0")
    return build_plan(environment, hardware, request(script=SCRIPT, launcher="torchrun", **changes))


def exported(made: LaunchPlan) -> dict[str, str]:
    return {variable.name: variable.value for variable in made.env}


@pytest.mark.parametrize(
    ("tree", "assume", "expected", "absent"),
    [
        (
            trees.mi300x,
            "8xMI300X",
            {
                "HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
                "DS_ACCELERATOR": "cuda",
                "NCCL_SOCKET_IFNAME": "=eth0",
                "GLOO_SOCKET_IFNAME": "eth0",
            },
            {"ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "HCCL_SOCKET_IFNAME"},
        ),
        (
            trees.ascend910b,
            "8xAscend910B",
            {
                "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
                "DS_ACCELERATOR": "npu",
                "HCCL_SOCKET_IFNAME": "=eth0",
                "HCCL_CONNECT_TIMEOUT": "600",
                "GLOO_SOCKET_IFNAME": "eth0",
            },
            {"ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "TORCH_FR_BUFFER_SIZE"},
        ),
        (
            trees.max1550,
            "4xMax 1550",
            {
                "DS_ACCELERATOR": "xpu",
                "CCL_KVS_IFACE": "eth0",
                "FI_TCP_IFACE": "eth0",
                "GLOO_SOCKET_IFNAME": "eth0",
            },
            {"ACCELERATE_USE_CPU", "ZE_AFFINITY_MASK", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG"},
        ),
    ],
)
def test_each_vendor_gets_its_own_variables_found_or_assumed(
    tree: Callable[[Path], Roots], assume: str, expected: dict[str, str], absent: set[str], tmp_path: Path
) -> None:
    for made in (plan(TWO_NODES, tree(tmp_path)), plan(TWO_NODES, assume=assume)):
        variables = exported(made)
        assert {name: variables.get(name) for name in expected} == expected
        assert absent.isdisjoint(variables)
        assert made.topology.nproc_per_node == len(made.hardware.gpus.devices)


def test_modelarts_is_read_together_with_its_npus(tmp_path: Path) -> None:
    env = {"MA_NUM_HOSTS": "2", "MA_NUM_GPUS": "8", "VC_TASK_INDEX": "1", "VC_WORKER_NUM": "2"}
    env |= {"VC_WORKER_HOSTS": "j-worker-0.j,j-worker-1.j", "ASCEND_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    made = plan(env, trees.ascend910b(tmp_path))
    assert (made.topology.platform, made.topology.world_size) == ("modelarts", 16)
    assert made.as_dict()["accelerator"] == {
        "vendor": "ascend",
        "count": 8,
        "visible": 8,
        "source": "/dev/davinci*",
    }


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", **TWO_NODES}, "8 × AMD GPU"),
        (
            {"MA_NUM_HOSTS": "1", "MA_NUM_GPUS": "8", "ASCEND_VISIBLE_DEVICES": "0-7"},
            r"8 × Ascend NPU \(ASCEND_VISIBLE_DEVICES=0-7, MA_NUM_GPUS=8\)",
        ),
        (
            {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "2"},
            r"2 × GPU \(SLURM_GPUS_ON_NODE=2\)",
        ),
        (
            {"KUBERNETES_CONTAINER_RESOURCE_GPU": "8", "DLC_JOB_ID": "d", **TWO_NODES},
            "KUBERNETES_CONTAINER_RESOURCE_GPU=8",
        ),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "2 × NVIDIA GPU"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "2 × GPU"),
        ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_NUM_GPUS": "8"}, "SM_NUM_GPUS=8"),
    ],
)
def test_what_was_allocated_and_cannot_be_used_is_refused(
    env: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(HardwareError, match=message) as refusal:
        plan(env, trees.bare_pod(tmp_path))
    assert refusal.value.message.startswith("no process can use this node's")
    assert ("amd.com/gpu" in refusal.value.hint) == ("HIP_VISIBLE_DEVICES" in env)


def test_the_container_that_hides_them_is_named_and_processes_by_flag_change_nothing(tmp_path: Path) -> None:
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "2"}
    env["APPTAINER_CONTAINER"] = "/images/torch.sif"
    with pytest.raises(HardwareError, match="started without --nv"):
        plan(env, trees.bare_pod(tmp_path), overrides=Overrides(nproc_per_node=2))


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "0"},
        {
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_GPUS_ON_NODE": "2",
            "CUDA_VISIBLE_DEVICES": "",
        },
        {"DLC_JOB_ID": "d", "KUBERNETES_CONTAINER_RESOURCE_GPU": "0", **TWO_NODES},
    ],
)
def test_a_cpu_job_stays_one(env: dict[str, str], tmp_path: Path) -> None:
    made = plan(env, trees.bare_pod(tmp_path))
    assert exported(made)["ACCELERATE_USE_CPU"] == "true"
    assert made.topology.nproc_per_node == 1


def test_a_vendor_that_is_not_counted_needs_the_number_of_processes(tmp_path: Path) -> None:
    roots = trees.bare_pod(tmp_path)
    write(roots.dev / "mtgpu.0", "")
    with pytest.raises(HardwareError, match="an accelerator of Moore Threads"):
        plan({}, roots)
    made = plan({}, roots, overrides=Overrides(nproc_per_node=4))
    assert made.topology.nproc_per_node == 4
    assert FORCES_THE_CPU.isdisjoint(exported(made))


def test_jax_on_a_tpu_is_not_sent_to_the_cpu(tmp_path: Path) -> None:
    roots = trees.bare_pod(tmp_path)
    env = Environment({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "h0"}, hostname="h0")
    hardware = detect(env, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)
    made = build_plan(env, hardware, request(script=SCRIPT, launcher="jax"))
    assert exported(made)["JAX_PLATFORMS"] == "tpu,cpu"


def test_the_mig_instance_that_a_user_chose_stays_chosen() -> None:
    """One of several, by its UUID: github.com/Project-MONAI/MONAI/issues/7497."""
    whole = machine(1).gpus.devices[0]
    uuids = [f"MIG-0000000{number}-5555-6666-7777-888888888888" for number in range(3)]
    gpus = replace(machine(1).gpus, devices=tuple(replace(whole, uuid=one, mig=True) for one in uuids))
    env = Environment({"CUDA_VISIBLE_DEVICES": uuids[1]}, hostname="host")
    made = build_plan(
        env, replace(machine(1), gpus=narrow(gpus, env)), request(script=SCRIPT, launcher="torchrun")
    )
    assert made.topology.nproc_per_node == 1
    assert "CUDA_VISIBLE_DEVICES" not in exported(made)


def test_several_mig_instances_carry_one_process_or_none() -> None:
    """Each further process would see no device: github.com/mlcommons/training/issues/442."""
    whole = machine(1).gpus.devices[0]
    parts = tuple(replace(whole, uuid=f"MIG-{number}", mig=True) for number in range(3))
    hardware = replace(machine(1), gpus=replace(machine(1).gpus, devices=parts))
    env = Environment({}, hostname="host")
    for overrides in (Overrides(), Overrides(nproc_per_node=2)):
        with pytest.raises(TopologyError, match="3 MIG instances"):
            build_plan(env, hardware, request(script=SCRIPT, launcher="torchrun", overrides=overrides))
    one = request(script=SCRIPT, launcher="torchrun", overrides=Overrides(nproc_per_node=1))
    made = build_plan(env, hardware, one)
    assert exported(made)["CUDA_VISIBLE_DEVICES"] == "MIG-0"
