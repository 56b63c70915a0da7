from __future__ import annotations

from dataclasses import replace

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.plan.processes import (
    process_variables,
    processes_per_node,
    removals,
    unused_gpus,
)
from tests.plan.machines import machine


def variables(env: dict[str, str], gpus: int = 0, *, cpus: float = 64, nproc: int = 1) -> dict[str, str]:
    chosen = process_variables(Environment(env), machine(gpus, cpus=cpus), nproc, "/local")
    return {variable.name: variable.value for variable in chosen}


def test_one_process_a_gpu_and_one_on_a_cpu_machine() -> None:
    assert processes_per_node(None, "", machine(8))[0] == 8
    assert processes_per_node(None, "", machine(0))[0] == 1
    assert processes_per_node(4, "--nproc-per-node", machine(8)) == (4, "--nproc-per-node")
    assert processes_per_node(3, "--nproc-per-node", machine(0))[0] == 3


def test_more_processes_than_gpus_are_refused_with_the_source_of_the_number() -> None:
    with pytest.raises(TopologyError, match=r"8 processes per node \(NPROC_PER_NODE\), but 4 GPU"):
        processes_per_node(8, "NPROC_PER_NODE", machine(4))


def test_gpus_left_idle_are_named() -> None:
    assert unused_gpus(8, machine(8)) == []
    assert "4 of 8 GPUs" in unused_gpus(4, machine(8))[0]


def test_visible_devices_are_set_only_when_unset() -> None:
    assert variables({}, 4, nproc=4)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert "CUDA_VISIBLE_DEVICES" not in variables({"CUDA_VISIBLE_DEVICES": "0,1"}, 2, nproc=2)


def test_deepspeed_is_told_of_a_cpu_machine_only_there() -> None:
    for name in ("DS_ACCELERATOR", "ACCELERATE_USE_CPU"):
        assert name in variables({})
        assert name not in variables({}, 8, nproc=8)


@pytest.mark.parametrize(
    ("cpus", "nproc", "threads"), [(64, 8, "8"), (2, 1, "2"), (1.5, 4, "1"), (0.5, 1, "1")]
)
def test_threads_share_the_cpus_of_the_container(cpus: float, nproc: int, threads: str) -> None:
    assert variables({}, cpus=cpus, nproc=nproc)["OMP_NUM_THREADS"] == threads
    assert "OMP_NUM_THREADS" not in variables({"OMP_NUM_THREADS": "3"}, cpus=cpus, nproc=nproc)


def test_torch_extensions_are_built_on_a_local_disk() -> None:
    assert variables({})["TORCH_EXTENSIONS_DIR"].startswith("/local/")


def test_caches_leave_a_home_that_cannot_be_written() -> None:
    hardware = machine(8)
    read_only = replace(hardware, host=replace(hardware.host, home_problem="HOME=/: / may not be written to"))
    env = Environment({"TRITON_CACHE_DIR": "/mine"})
    chosen = {one.name: one.value for one in process_variables(env, read_only, 8, "/local")}
    assert chosen["XDG_CACHE_HOME"] == "/local/cache"
    assert chosen["TORCHINDUCTOR_CACHE_DIR"] == "/local/cache/torchinductor"
    assert "TRITON_CACHE_DIR" not in chosen
    assert "XDG_CACHE_HOME" not in variables({}, 8, nproc=8)


def test_node_level_names_and_pet_defaults_do_not_reach_the_workers() -> None:
    env = {"WORLD_SIZE": "2", "RANK": "1", "PET_NNODES": "2", "MASTER_ADDR": "m", "PETRA": "kept"}
    assert [removal.name for removal in removals(env)] == ["PET_NNODES", "RANK", "WORLD_SIZE"]
