"""CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES, over known GPUs."""

from __future__ import annotations

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import HardwareError, UsageError
from platform_launch.hardware import Gpu, Gpus
from platform_launch.hardware.visible import narrow
from tests.lab.nvml.fake import mig_uuid, uuid


def machine(count: int) -> Gpus:
    return Gpus(tuple(Gpu(i, "NVIDIA H100 80GB HBM3", 79.6, uuid(i)) for i in range(count)), source="NVML")


def mig_machine() -> Gpus:
    """Two instances of GPU 0, then GPU 1 whole."""
    parts = [
        Gpu(0, "H100 MIG", 9.5, mig_uuid(0, n), mig=True, aliases=(uuid(0), f"MIG-{uuid(0)}/{n}/0"))
        for n in (1, 2)
    ]
    return Gpus((*parts, *machine(2).devices[1:]), source="NVML")


def chosen(gpus: Gpus, **variables: str) -> list[str]:
    return [gpu.uuid for gpu in narrow(gpus, Environment(variables, hostname="node0")).devices]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", [0]),
        ("3,1", [3, 1]),
        (" 0 , 2 ", [0, 2]),
        ("0,1,", [0, 1]),
        ("007", [7]),
        (uuid(5), [5]),
        ("GPU-00000006,GPU-00000002", [6, 2]),
        ("0,2,-1,1", [0, 2]),
        ("-1", []),
        ("", []),
        ("  ", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_means_what_it_means_to_cuda(value: str, expected: list[int]) -> None:
    assert chosen(machine(8), CUDA_VISIBLE_DEVICES=value) == [uuid(index) for index in expected]


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_hiding_every_gpu_is_a_warning(value: str) -> None:
    narrowed = narrow(machine(8), Environment({"CUDA_VISIBLE_DEVICES": value}, hostname="node0"))
    assert narrowed.warnings == (f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU of this machine (8)",)


def test_entries_after_minus_one_are_a_warning() -> None:
    narrowed = narrow(machine(8), Environment({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, hostname="node0"))
    assert "ignores everything from -1 on" in narrowed.warnings[0]


@pytest.mark.parametrize("entry", ["8", "GPU-deadbeef", "MIG-deadbeef", "99999999999999999999999"])
def test_a_gpu_that_is_not_there_is_a_fault_of_the_node(entry: str) -> None:
    with pytest.raises(HardwareError) as raised:
        chosen(machine(8), CUDA_VISIBLE_DEVICES=f"0,{entry}")
    assert f"names {entry!r}, but this machine shows 8 GPUs, index 0, 1, 2, 3, 4, 5, 6, 7" in str(
        raised.value
    )


@pytest.mark.parametrize("value", ["0-3", "0;1", "0,,1", "cuda:0", "all", "٣", "0 1", "$(reboot)", "1\n2"])
def test_an_entry_that_is_neither_index_nor_uuid_is_a_fault_of_the_command(value: str) -> None:
    with pytest.raises(UsageError, match="is neither an index nor a UUID"):
        chosen(machine(8), CUDA_VISIBLE_DEVICES=value)


@pytest.mark.parametrize("value", ["0,0", "1,2,01", f"3,{uuid(3)}"])
def test_a_gpu_named_twice_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="a second time"):
        chosen(machine(8), CUDA_VISIBLE_DEVICES=value)


def test_an_abbreviated_uuid_must_mean_one_gpu() -> None:
    with pytest.raises(UsageError, match="matches the UUIDs of 8 GPUs"):
        chosen(machine(8), CUDA_VISIBLE_DEVICES="GPU-0000")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (mig_uuid(0, 2), [mig_uuid(0, 2)]),
        ("MIG-00000001", [mig_uuid(0, 1)]),
        (f"MIG-{uuid(0)}/2/0", [mig_uuid(0, 2)]),
        ("0", [mig_uuid(0, 1), mig_uuid(0, 2)]),
        (uuid(0), [mig_uuid(0, 1), mig_uuid(0, 2)]),
        ("1", [uuid(1)]),
    ],
)
def test_mig_instances_can_be_named_in_every_way_cuda_takes(value: str, expected: list[str]) -> None:
    assert chosen(mig_machine(), CUDA_VISIBLE_DEVICES=value) == expected


def test_an_abbreviated_mig_uuid_must_mean_one_instance() -> None:
    with pytest.raises(UsageError, match="matches the UUIDs of 2 GPUs"):
        chosen(mig_machine(), CUDA_VISIBLE_DEVICES="MIG-0000")


@pytest.mark.parametrize("value", ["all", "void", "", "0,1,2,3,4,5,6,7", "not-a-uuid"])
def test_what_the_container_runtime_did_already_is_not_done_again(value: str) -> None:
    assert len(chosen(machine(8), NVIDIA_VISIBLE_DEVICES=value)) == 8


def test_a_container_given_host_indices_sees_its_own_counted_from_zero() -> None:
    assert chosen(machine(2), NVIDIA_VISIBLE_DEVICES="6,7") == [uuid(0), uuid(1)]


@pytest.mark.parametrize("value", ["6,2", f"{uuid(6)},{uuid(2)}", f"{uuid(6)},{uuid(2)},{uuid(6)}"])
def test_a_privileged_container_uses_only_the_gpus_it_was_given(value: str) -> None:
    narrowed = narrow(machine(8), Environment({"NVIDIA_VISIBLE_DEVICES": value}, hostname="node0"))
    assert [gpu.index for gpu in narrowed.devices] == [6, 2]
    assert "grants 2 of them" in narrowed.warnings[0]


def test_a_container_given_no_gpu_uses_none_although_it_sees_them() -> None:
    narrowed = narrow(machine(8), Environment({"NVIDIA_VISIBLE_DEVICES": "none"}, hostname="node0"))
    assert narrowed.devices == ()
    assert "none is used" in narrowed.warnings[0]


def test_fewer_gpus_than_the_container_was_given_is_a_warning() -> None:
    narrowed = narrow(
        machine(7), Environment({"NVIDIA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, hostname="node0")
    )
    assert len(narrowed.devices) == 7
    assert "grants 8 GPUs, but the driver shows 7" in narrowed.warnings[0]


def test_cudas_variable_wins_over_the_containers() -> None:
    both = {"CUDA_VISIBLE_DEVICES": "5", "NVIDIA_VISIBLE_DEVICES": "6,2"}
    assert chosen(machine(8), **both) == [uuid(5)]
