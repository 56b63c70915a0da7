"""What one reading tells for certain."""

from __future__ import annotations

import pytest

from platform_launch.hardware.gpu_health import GpuHealth, Xid
from platform_launch.health.faults import DEVICE_XIDS, PROGRAM_XIDS, faults
from platform_launch.health.finding import DeviceFinding, Grade, node_health
from tests.health.devices import gpu, port, reading


def test_nothing_is_said_of_devices_that_are_well() -> None:
    begin = reading(gpu(0), gpu(1), port())
    assert faults(begin, begin) == []
    assert node_health([]).grade is Grade.HEALTHY


def test_a_device_that_says_nothing_is_not_called_faulty() -> None:
    mute = GpuHealth(0, "NVIDIA GB10", "GPU-0")
    assert faults(reading(mute), reading(mute)) == []


@pytest.mark.parametrize(
    ("changes", "finding", "grade"),
    [
        ({"lost": "GPU_IS_LOST"}, "gpu-lost", Grade.BAD),
        ({"recovery_action": 2}, "gpu-recovery-action", Grade.BAD),
        ({"recovery_action": 99}, "gpu-recovery-action", Grade.BAD),
        ({"rows_failed": True}, "gpu-rows-failed", Grade.BAD),
        ({"rows_pending": True}, "gpu-rows-pending", Grade.SUSPECT),
        ({"sram_uncorrected": 1, "ecc_uncorrected": 1}, "gpu-ecc", Grade.BAD),
        ({"ecc_uncorrected": 3}, "gpu-ecc", Grade.SUSPECT),
    ],
)
def test_a_fault_of_a_gpu_is_named_and_graded(changes: dict[str, int], finding: str, grade: Grade) -> None:
    [found] = faults(reading(gpu(3, **changes)), reading(gpu(3)))
    assert (found.id, found.grade, found.where) == (finding, grade, "GPU 3")


def test_memory_errors_of_earlier_runs_are_not_this_ones() -> None:
    worn = reading(gpu(0, ecc_uncorrected=7, sram_uncorrected=2))
    assert faults(worn) == faults(worn, worn) == []


def test_a_port_that_was_down_from_the_beginning_is_not_lost() -> None:
    unused, down = port("mlx5_1", "DOWN"), port("mlx5_0", "DOWN")
    [found] = faults(reading(down, unused), reading(port("mlx5_0"), unused))
    assert (found.id, found.where, found.grade) == ("rdma-port-lost", "mlx5_0:1", Grade.BAD)


def test_a_port_whose_files_are_gone_is_lost() -> None:
    [found] = faults(reading(port(state="")), reading(port()))
    assert "gone" in found.what


@pytest.mark.parametrize(
    ("code", "finding", "grade"),
    [
        (79, "gpu-xid", Grade.BAD),
        (94, "gpu-xid", Grade.SUSPECT),
        (31, "gpu-xid-program", Grade.HEALTHY),
        (777, "gpu-xid", Grade.SUSPECT),
    ],
)
def test_an_xid_is_the_devices_or_the_programs(code: int, finding: str, grade: Grade) -> None:
    xids = [Xid(2, code, 0.0), Xid(2, code, 1.0)]
    [found] = faults(reading(gpu(2)), None, xids)
    assert (found.id, found.grade, found.where) == (finding, grade, "GPU 2")


def test_no_xid_is_both() -> None:
    assert not PROGRAM_XIDS & DEVICE_XIDS.keys()


def test_a_node_is_as_bad_as_its_worst_device_and_says_that_first() -> None:
    found = faults(reading(gpu(0, rows_pending=True), gpu(1, recovery_action=1)))
    health = node_health(found)
    assert health.grade is Grade.BAD
    assert [reason.split(":")[0] for reason in health.reasons] == ["GPU 1", "GPU 0"]


def test_a_finding_has_an_id_of_the_catalogue() -> None:
    with pytest.raises(ValueError, match="no finding of a device"):
        DeviceFinding("gpu-sad", Grade.BAD, "GPU 0", "is sad")
