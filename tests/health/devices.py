"""Readings of devices as tests write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from platform_launch.hardware.gpu_health import GpuHealth
from platform_launch.hardware.rdma import PortHealth
from platform_launch.health.reading import DeviceHistory, DeviceReading

STEP_S = 15.0


def gpu(index: int = 0, **changes: Any) -> GpuHealth:
    """A GPU that is well and at work."""
    return replace(
        GpuHealth(
            index,
            "NVIDIA H100",
            f"GPU-{index}",
            recovery_action=0,
            rows_pending=False,
            rows_failed=False,
            ecc_uncorrected=0,
            sram_uncorrected=0,
            clock_reasons=0x4,
            sm_clock_mhz=1900,
            utilization_percent=98,
            pcie_replays=0,
            nvlink_errors=0,
        ),
        **changes,
    )


def port(device: str = "mlx5_0", state: str = "ACTIVE", **counters: int) -> PortHealth:
    return PortHealth(device, 1, state, counters)


def reading(*devices: GpuHealth | PortHealth, at_s: float = 0.0) -> DeviceReading:
    return DeviceReading(
        at_s,
        tuple(device for device in devices if isinstance(device, GpuHealth)),
        tuple(device for device in devices if isinstance(device, PortHealth)),
    )


def history(*moments: tuple[GpuHealth | PortHealth, ...], step_s: float = STEP_S) -> DeviceHistory:
    """Readings one after another."""
    past = DeviceHistory()
    for number, devices in enumerate(moments):
        past.add(reading(*devices, at_s=number * step_s))
    return past
