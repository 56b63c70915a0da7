from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from platform_launch import helper
from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.hardware import Hardware
from platform_launch.plan import launchers
from platform_launch.plan.program import Program
from platform_launch.plan.request import Form, Request
from platform_launch.plan.starts import Start
from platform_launch.plan.training import Training
from platform_launch.topology import Overrides
from tests.plan.machines import job, machine

PROGRAM = Program(Form.SCRIPT, "/job/train.py", ("--lr", "a b"), Path("/job/train.py"))
SCRIPT = Training(PROGRAM, None, None, "--script given")


def asked(launcher: str, **fields: Any) -> Request:
    return Request(
        Path("/project"), "/env/python", "/local", "now", Path("/logs"), launcher=launcher, **fields
    )


def start(
    request: Request, hardware: Hardware, env: dict[str, str] | None = None, **topology: object
) -> Start:
    return launchers.start(request, Environment(env or {}), job(**topology), hardware, SCRIPT)  # type: ignore[arg-type]


def variables(start: Start) -> dict[str, str]:
    assert all(variable.reason for variable in start.env)
    return {variable.name: variable.value for variable in start.env}


def test_torchrun_gets_the_place_of_the_node_on_its_command_line() -> None:
    made = start(asked("torchrun"), machine(8), node_rank=1, nproc_per_node=8)
    assert made.argv == (
        *("/env/python", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "8"),
        *("--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "29500"),
        *("--", "/job/train.py", "--lr", "a b"),
    )
    assert made.packages == ("torch",)


def test_an_ipv6_master_is_bracketed_where_a_port_follows() -> None:
    torchrun = start(asked("torchrun"), machine(0), master_addr="fd00::1", nproc_per_node=1)
    assert torchrun.argv[torchrun.argv.index("--master-addr") + 1] == "[fd00::1]"
    jax = variables(start(asked("jax"), machine(0), master_addr="fd00::1", nproc_per_node=1))
    assert (jax["JAX_COORDINATOR_ADDRESS"], jax["MASTER_ADDR"]) == ("[fd00::1]:29500", "fd00::1")


def test_torchrun_passes_on_a_batch_systems_warning_unless_the_user_decided() -> None:
    said = variables(start(asked("torchrun"), machine(0), nproc_per_node=1))
    assert "SIGUSR1" in said["PET_SIGNALS_TO_HANDLE"].split(",")
    env = {"PET_SIGNALS_TO_HANDLE": "SIGTERM", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    said = variables(start(asked("torchrun"), machine(0), env, nproc_per_node=1))
    assert said.keys().isdisjoint(env)


@pytest.mark.parametrize("launcher", ["torchrun", "jax", "python"])
def test_every_launcher_tells_the_training_its_node(launcher: str) -> None:
    said = variables(start(asked(launcher), machine(0), node_rank=1, nproc_per_node=1))
    assert (said["NNODES"], said["NODE_RANK"]) == ("2", "1")


def test_one_plain_python_process_gets_its_rank() -> None:
    made = start(asked("python"), machine(0), node_rank=1, nproc_per_node=1)
    assert made.argv == ("/env/python", "/job/train.py", "--lr", "a b")
    assert variables(made) == {
        "NNODES": "2",
        "NODE_RANK": "1",
        "NPROC_PER_NODE": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def test_a_python_script_that_starts_its_processes_itself_gets_the_nodes_place_only() -> None:
    # Lightning, for one, takes LOCAL_RANK as a sign that it is a worker already.
    said = variables(start(asked("python"), machine(8), nproc_per_node=8))
    assert said["NPROC_PER_NODE"] == "8"
    assert not said.keys() & {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}


def test_one_jax_process_drives_all_gpus_of_its_node() -> None:
    request, topology = asked("jax"), job(node_rank=1, nproc_per_node=8)
    assert launchers.processes_per_node(request, Environment({}), topology, machine(8))[0] == 1
    assert launchers.unused_gpus(request, 1, machine(8)) == []
    said = variables(start(request, machine(8), node_rank=1, nproc_per_node=1))
    assert (said["JAX_PROCESS_ID"], said["JAX_NUM_PROCESSES"]) == ("1", "2")
    assert said["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:29500"
    assert (said["RANK"], said["LOCAL_RANK"], said["WORLD_SIZE"]) == ("1", "0", "2")


def test_jax_per_gpu_gives_each_process_its_rank_and_device() -> None:
    request = asked("jax", jax_per_gpu=True, grace_s=60.0)
    made = start(request, machine(4), node_rank=1, nproc_per_node=4)
    assert made.argv[:4] == helper.command("side-by-side", python="/env/python")
    assert made.argv[4:] == (
        *("--grace-period", "60", "JAX_PROCESS_ID=4,5,6,7", "RANK=4,5,6,7", "LOCAL_RANK=0,1,2,3"),
        *("JAX_LOCAL_DEVICE_IDS=0,1,2,3", "--", "/env/python", "/job/train.py", "--lr", "a b"),
    )
    assert variables(made)["JAX_NUM_PROCESSES"] == "8"
    assert "JAX_PROCESS_ID" not in variables(made)


def test_jax_takes_gpu_memory_as_needed_unless_the_user_decided() -> None:
    said = variables(start(asked("jax"), machine(8), nproc_per_node=1))
    assert said["JAX_PLATFORMS"] == "cuda,cpu"
    assert (said["XLA_PYTHON_CLIENT_PREALLOCATE"], said["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == ("false", "0.9")
    env = {
        "JAX_PLATFORM_NAME": "gpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5",
    }
    said = variables(start(asked("jax"), machine(8), env, nproc_per_node=1))
    assert not said.keys() & {*env, "JAX_PLATFORMS"}


def test_jax_on_a_cpu_machine_is_told_so_and_nothing_of_gpu_memory() -> None:
    said = variables(start(asked("jax"), machine(0), nproc_per_node=1))
    assert said["JAX_PLATFORMS"] == "cpu"
    assert not [name for name in said if name.startswith("XLA_")]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (asked("torchrun", deepspeed_config=Path("x.yaml")), "--deepspeed-config works only with"),
        (asked("jax", strict=True), "--strict works only with"),
        (asked("torchrun", jax_per_gpu=True), "--jax-per-gpu works only with"),
        (asked("jax", overrides=Overrides(nproc_per_node=4)), "starts one process per node"),
    ],
)
def test_flags_that_a_launcher_does_not_read_are_refused(request_: Request, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        launchers.check(request_)
