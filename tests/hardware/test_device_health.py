"""What a driver and the kernel say of devices while time passes: a stand-in for NVML, a changing tree."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from platform_launch.hardware import rdma
from tests.conftest import FakeNvml
from tests.hardware import trees
from tests.lab.nvml import fake

# Reads once for each line it is given, after waiting for XIDs.
_SCRIPT = """
import dataclasses, json, sys
from pathlib import Path
from platform_launch.hardware import nvml
from platform_launch.hardware.gpu_health import GpuHealthProbe

probe = GpuHealthProbe(nvml.read(sys_root=Path("/nonexistent"), proc_root=Path("/nonexistent")).devices)
probe.open()
for line in sys.stdin:
    xids = probe.wait(float(line))
    gpus = probe.read()
    told = {"gpus": [dataclasses.asdict(gpu) for gpu in gpus], "xids": [(x.gpu, x.code) for x in xids]}
    print(json.dumps({**told, "problem": probe.xids_problem}), flush=True)
probe.close()
"""

Driver = Callable[..., dict[str, Any]]


@pytest.fixture
def driver(fake_nvml: FakeNvml) -> Iterator[Driver]:
    """Read the GPUs of a process that stays, after the driver has begun to say these lines."""
    variables = fake_nvml(*fake.h100s(2))
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def read(*lines: str, wait_s: float = 0) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            fake.say(Path(variables["FAKE_NVML"]), (*fake.h100s(2), *lines))
            process.stdin.write(f"{wait_s}\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield read
        process.stdin.close()
        assert process.wait() == 0


def test_a_gpu_is_read_while_it_changes_and_after_it_has_gone(driver: Driver) -> None:
    first = driver()["gpus"]
    assert [(gpu["index"], gpu["lost"], gpu["recovery_action"]) for gpu in first] == [
        (0, "", None),
        (1, "", None),
    ]
    well = (
        fake.field(1, fake.RECOVERY_ACTION, 0),
        fake.field(1, fake.PCIE_REPLAYS, 7),
        fake.field(1, fake.NVLINK_ERRORS, 5),
        *fake.state(1, pending=0, failure=0, reasons=4, clock=1980, ecc=0, sram=0),
        fake.use(1, 99),
    )
    [_, gpu] = driver(*well)["gpus"]
    assert (gpu["recovery_action"], gpu["pcie_replays"], gpu["nvlink_errors"]) == (0, 7, 5)
    assert (gpu["rows_pending"], gpu["rows_failed"], gpu["clock_reasons"]) == (False, False, 4)
    assert gpu["sm_clock_mhz"] == 1980
    assert (gpu["utilization_percent"], gpu["ecc_uncorrected"], gpu["sram_uncorrected"]) == (99, 0, 0)
    [_, gpu] = driver(fake.field(1, fake.RECOVERY_ACTION, 2), *fake.state(1, pending=1, reasons=0x40))["gpus"]
    assert (gpu["recovery_action"], gpu["rows_pending"], gpu["clock_reasons"]) == (2, True, 0x40)
    [other, gpu] = driver(fake.lost(1))["gpus"]
    assert (other["lost"], gpu["lost"], gpu["uuid"]) == ("", "NVML: GPU_IS_LOST", fake.uuid(1))


def test_xids_are_heard_of_once_with_their_gpu(driver: Driver) -> None:
    assert driver()["xids"] == []
    assert driver(fake.xid(1, 79), fake.xid(0, 31), wait_s=60)["xids"] == [[1, 79], [0, 31]]
    assert driver(fake.xid(1, 79), fake.xid(0, 31))["xids"] == []


def test_a_driver_that_tells_no_events_is_still_read(fake_nvml: FakeNvml) -> None:
    variables = fake_nvml(*fake.h100s(1), fake.fail("nvmlDeviceRegisterEvents", 4, 0))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=variables,
        input="0\n",
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["problem"]
    assert len(said["gpus"]) == 1


def test_ports_are_read_while_they_change_and_after_they_have_gone(tmp_path: Path) -> None:
    roots = trees.machine(tmp_path, (trees.ib("mlx5_0", "400 Gb/sec (4X NDR)", 0),))
    folder = roots.sys / "class/infiniband/mlx5_0/ports/1"
    ports = rdma.find(roots.sys)
    [port] = rdma.read_health(ports, roots.sys)
    assert (port.place, port.state, port.counters) == ("mlx5_0:1", "ACTIVE", {})
    trees.write(folder / "counters/symbol_error", "12\n")
    trees.write(folder / "hw_counters/local_ack_timeout_err", "3\n")
    trees.write(folder / "state", "1: DOWN\n")
    [port] = rdma.read_health(ports, roots.sys)
    assert (port.state, port.counters) == ("DOWN", {"symbol_error": 12, "local_ack_timeout_err": 3})
    (folder / "state").unlink()
    assert rdma.read_health(ports, roots.sys)[0].state == ""
