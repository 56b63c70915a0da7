"""The GPUs of a machine, as a child process reads them from a stand-in driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FakeNvml
from tests.lab.nvml import fake
from tests.lab.waiting import LIMIT_S

# Reads the GPUs anew for each line on standard input, in a fork: a start of Python costs ten times as much.
_READ_GPUS = """
import dataclasses, json, os, pathlib, sys
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError
from platform_launch.hardware import nvml, visible

def read(sys_root, proc_root):
    try:
        machine = nvml.read(sys_root=sys_root, proc_root=proc_root)
        return dataclasses.asdict(visible.narrow(machine, Environment.of_this_process()))
    except LaunchError as error:
        return {"error": error.message, "hint": error.hint, "kind": type(error).__name__}

for line in sys.stdin:
    variables, *roots = json.loads(line)
    child = os.fork()
    if not child:
        try:
            os.environ.update(variables)
            print(json.dumps(read(*map(pathlib.Path, roots))), flush=True)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"a reading ended with {status}")
"""
# By LD_LIBRARY_PATH, which the loader reads only when a program starts.
_readers: dict[str, subprocess.Popen[str]] = {}


@pytest.fixture(scope="module", autouse=True)
def readers() -> Iterator[None]:
    """The processes that read; those that still run end with the module."""
    yield
    for reader in _readers.values():
        reader.communicate(timeout=LIMIT_S)
    _readers.clear()


def read_gpus(variables: dict[str, str], root: Path = Path("/nowhere"), **more: str) -> dict[str, Any]:
    """Read the GPUs in a child process. ``root`` holds the recorded ``sys`` and ``proc``."""
    libraries = variables.get("LD_LIBRARY_PATH", "")
    if libraries not in _readers:
        inherited = {k: v for k, v in os.environ.items() if not k.endswith("_VISIBLE_DEVICES")}
        _readers[libraries] = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _READ_GPUS],
            env={**inherited, **({"LD_LIBRARY_PATH": libraries} if libraries else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    reader = _readers[libraries]
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(json.dumps([{**variables, **more}, str(root / "sys"), str(root / "proc")]) + "\n")
    reader.stdin.flush()
    said = reader.stdout.readline()
    assert said, f"ended with {reader.wait(LIMIT_S)}, standard error says why"
    answer: dict[str, Any] = json.loads(said)
    return answer


def indices(answer: dict[str, Any]) -> list[int]:
    return [gpu["index"] for gpu in answer["devices"]]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_healthy_node_shows_all_its_gpus(fake_nvml: FakeNvml) -> None:
    answer = read_gpus(fake_nvml(*fake.h100s(8)))
    assert indices(answer) == list(range(8))
    assert answer["devices"][3] == {
        "index": 3,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_gib": 81559 / 1024,
        "uuid": fake.uuid(3),
        "compute_capability": [9, 0],
        "mig": False,
        "processes": [],
        "used_gib": 600 / 1024,
        "aliases": [],
        "pci": "0000:13:00.0",
        "vendor": "nvidia",
    }
    assert (answer["driver"], answer["cuda"]) == ("550.54.15", "12.4")
    assert answer["source"] == "NVML"
    assert answer["warnings"] == []


@fake.without_driver
def test_a_machine_without_driver_is_a_cpu_machine() -> None:
    answer = read_gpus({})
    assert answer["devices"] == []
    assert answer["source"] == "no accelerator found"
    assert answer["warnings"] == []


@fake.without_driver
def test_gpus_on_the_bus_without_the_drivers_library_are_a_warning(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    for slot in range(8):
        write(devices / f"0000:{slot:02x}:00.0/modalias", "pci:v000010DEd00002330sv0sd0bc03sc02i00")
    write(devices / "0000:88:00.0/modalias", "pci:v000010DEd000022A3sv0sd0bc06sc80i00")  # NVSwitch
    answer = read_gpus({}, tmp_path)
    assert answer["devices"] == []
    [warning] = answer["warnings"]
    assert warning.startswith("the PCI bus has 8 NVIDIA GPUs, but the driver's library")
    assert "nvidia.com/gpu" in warning


def test_an_empty_library_left_in_an_image_counts_as_absent(tmp_path: Path) -> None:
    write(tmp_path / "libnvidia-ml.so.1", "")
    answer = read_gpus({"LD_LIBRARY_PATH": str(tmp_path)})
    assert answer["source"] == "no accelerator found"


def test_a_library_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    write(
        tmp_path / "libnvidia-ml.so.1", "not a library at all, but longer than an ELF header needs to be" * 9
    )
    answer = read_gpus({"LD_LIBRARY_PATH": str(tmp_path)})
    assert answer["kind"] == "HardwareError"
    assert "invalid ELF header" in answer["error"]


def test_a_cuda_image_on_a_machine_without_gpus_is_a_cpu_machine(fake_nvml: FakeNvml) -> None:
    answer = read_gpus(fake_nvml(fake.fail("nvmlInitWithFlags", 9)))
    assert answer["devices"] == []
    assert "NVML_ERROR_DRIVER_NOT_LOADED (9)" in answer["warnings"][0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sys/bus/pci/devices/0000:01:00.0/modalias", "pci:v000010DEd00002330sv0sd0bc03sc02i00"),
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15"),
    ],
    ids=["on the bus", "module loaded"],
)
def test_a_driver_that_is_not_loaded_on_a_gpu_machine_is_an_error(
    fake_nvml: FakeNvml, tmp_path: Path, path: str, text: str
) -> None:
    write(tmp_path / path, text)
    answer = read_gpus(fake_nvml(fake.fail("nvmlInitWithFlags", 9)), tmp_path)
    assert answer["kind"] == "HardwareError"
    assert "NVML_ERROR_DRIVER_NOT_LOADED (9, Driver Not Loaded)" in answer["error"]


@pytest.mark.parametrize(
    ("code", "name", "cause"),
    [
        (4, "NO_PERMISSION", "/dev/nvidia* may not be opened"),
        (18, "LIB_RM_VERSION_MISMATCH", "updated without a reboot"),
        (27, "NOT_READY", "nvidia-fabricmanager"),
        (999, "UNKNOWN", "daemon-reload"),
    ],
)
def test_a_driver_that_errs_names_its_code_and_the_usual_cause(
    fake_nvml: FakeNvml, code: int, name: str, cause: str
) -> None:
    answer = read_gpus(fake_nvml(*fake.h100s(8), fake.fail("nvmlInitWithFlags", code)))
    assert answer["kind"] == "HardwareError"
    assert f"NVML_ERROR_{name} ({code}, " in answer["error"]
    assert cause in answer["error"]
    assert answer["hint"]


def test_a_code_nobody_knows_is_still_shown(fake_nvml: FakeNvml) -> None:
    answer = read_gpus(fake_nvml(fake.fail("nvmlInitWithFlags", 77)))
    assert "NVML error 77" in answer["error"]


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"]
)
def test_a_lost_gpu_is_named_by_its_index(fake_nvml: FakeNvml, function: str) -> None:
    answer = read_gpus(fake_nvml(*fake.h100s(8), fake.fail(function, 15, index=5)))
    assert answer["kind"] == "HardwareError"
    assert answer["error"].startswith("GPU 5 answered")
    assert "NVML_ERROR_GPU_IS_LOST (15, GPU is lost)" in answer["error"]


@pytest.mark.parametrize("code", [3, 4, 13], ids=["not supported", "no permission", "old driver"])
def test_queries_that_a_launch_can_miss_are_left_out(fake_nvml: FakeNvml, code: int) -> None:
    optional = [
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGpuFabricInfo",
    ]
    answer = read_gpus(fake_nvml(*fake.h100s(2), *(fake.fail(query, code) for query in optional)))
    assert indices(answer) == [0, 1]
    assert answer["driver"] is None
    assert answer["devices"][0]["compute_capability"] is None


def test_a_driver_that_cannot_say_goodbye_has_answered_all_the_same(fake_nvml: FakeNvml) -> None:
    assert indices(read_gpus(fake_nvml(*fake.h100s(2), fake.fail("nvmlShutdown", 999)))) == [0, 1]


def test_a_gpu_that_shares_the_machines_memory_has_no_size(fake_nvml: FakeNvml) -> None:
    gb10 = fake.gpu(0, "NVIDIA GB10", capability=(12, 1))
    answer = read_gpus(fake_nvml(fake.driver(), gb10, fake.fail("nvmlDeviceGetMemoryInfo", 3)))
    assert answer["devices"][0]["memory_gib"] is None


def test_a_gpu_in_use_warns_with_pid_memory_and_command(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    write(tmp_path / "proc/4711/cmdline", "python\0train.py\0--epochs\09\0")
    lines = (*fake.h100s(8), fake.process(3, 4711, 20480), fake.process(3, 99, 512))
    answer = read_gpus(fake_nvml(*lines), tmp_path)
    [warning] = answer["warnings"]
    assert warning == (
        "GPU 3 (NVIDIA H100 80GB HBM3) is in use: "
        "pid 4711 (python train.py --epochs 9) holds 20480 MiB, "
        "pid 99 (outside this container) holds 512 MiB"
    )


def test_memory_taken_by_nobody_visible_is_a_warning(fake_nvml: FakeNvml) -> None:
    answer = read_gpus(fake_nvml(fake.driver(), fake.gpu(0), fake.gpu(1, used_mib=40960)))
    [warning] = answer["warnings"]
    assert "GPU 1" in warning
    assert "40.0 of 79.6 GiB" in warning


def test_gpus_in_use_that_are_not_chosen_do_not_warn(fake_nvml: FakeNvml) -> None:
    answer = read_gpus(fake_nvml(*fake.h100s(4), fake.process(3, 4711, 20480)), CUDA_VISIBLE_DEVICES="0,1")
    assert answer["warnings"] == []


def test_a_fabric_that_is_not_ready_is_a_warning(fake_nvml: FakeNvml) -> None:
    states = [fake.gpu(0, fabric_state=3), fake.gpu(1, fabric_state=2)]
    [warning] = read_gpus(fake_nvml(fake.driver(), *states))["warnings"]
    assert "GPU 1" in warning
    assert "in progress" in warning
    assert "802" in warning


def test_an_nvlink_domain_of_several_nodes_is_named(fake_nvml: FakeNvml) -> None:
    states = [fake.gpu(index, fabric_state=3) for index in range(2)]
    within_a_node = read_gpus(fake_nvml(fake.driver(), *states))
    assert within_a_node["fabric"] == ""
    rack = read_gpus(fake_nvml(fake.driver(), *states, *fake.state(0, cluster=7), *fake.state(1, cluster=7)))
    assert rack["fabric"] == "00000000000000000000000000000007.0"


def test_mig_instances_stand_in_place_of_their_gpu(fake_nvml: FakeNvml) -> None:
    lines = (*fake.h100s(2), fake.mig(0, 1), fake.mig(0, 5, profile="3g.40gb", memory_mib=40448))
    answer = read_gpus(fake_nvml(*lines))
    assert [(gpu["uuid"], gpu["mig"]) for gpu in answer["devices"]] == [
        (fake.mig_uuid(0, 1), True),
        (fake.mig_uuid(0, 5), True),
        (fake.uuid(1), False),
    ]
    assert answer["devices"][1]["memory_gib"] == 40448 / 1024
    assert answer["devices"][1]["aliases"] == [fake.uuid(0), f"MIG-{fake.uuid(0)}/5/0"]
    assert "several MIG instances" in answer["warnings"][0]


def test_cuda_visible_devices_narrows_what_the_driver_shows(fake_nvml: FakeNvml) -> None:
    answer = read_gpus(fake_nvml(*fake.h100s(8)), CUDA_VISIBLE_DEVICES="6,2")
    assert indices(answer) == [6, 2]
    assert answer["source"] == "NVML, chosen by CUDA_VISIBLE_DEVICES=6,2"


def test_a_driver_that_shows_no_gpu_says_why(fake_nvml: FakeNvml) -> None:
    answer = read_gpus(fake_nvml(fake.driver()), NVIDIA_VISIBLE_DEVICES="void")
    assert answer["devices"] == []
    assert "given none (NVIDIA_VISIBLE_DEVICES" in answer["warnings"][0]
