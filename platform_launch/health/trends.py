"""Faults that only several readings of one node show: throttled clocks, links that fail repeatedly.

Thresholds and their sources: docs/decisions/0017.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from platform_launch.hardware.rdma import LINK_COUNTERS
from platform_launch.health.finding import DeviceFinding, Grade
from platform_launch.health.reading import DeviceHistory
from platform_launch.text import Phrase, joined

# HW slowdown, HW thermal, HW power brake, SW thermal; the SW power cap (0x4) is normal under load.
SLOWDOWN_MASK = 0xE8
_SLOWDOWNS = {
    0x8: Phrase("hardware slowdown"),
    0x20: Phrase("heat"),
    0x40: Phrase("heat"),
    0x80: Phrase("power brake"),
}
SLOWDOWN_WINDOW_S, SLOWDOWN_SHARE, _FEWEST = 600.0, 0.6, 8
NVLINK_WINDOW_S, NVLINK_MINUTES = 1800.0, 15
FLAP_WINDOW_S, FLAPS = 1800.0, 3


def trends(history: DeviceHistory) -> list[DeviceFinding]:
    """Return the findings from the readings of the last half hour."""
    last = history.last
    if last is None:
        return []
    found = [
        one for gpu in last.gpus for one in (*_slowdown(history, gpu.index), *_links(history, gpu.index))
    ]
    return [*found, *(one for port in last.ports for one in _flaps(history, port.place))]


def _slowdown(history: DeviceHistory, index: int) -> Iterator[DeviceFinding]:
    masks = [gpu.clock_reasons for _, gpu in history.gpu(index, SLOWDOWN_WINDOW_S)]
    held = [mask & SLOWDOWN_MASK for mask in masks if mask is not None]
    if len(held) < _FEWEST or sum(map(bool, held)) < SLOWDOWN_SHARE * len(held):
        return
    reasons = dict.fromkeys(text for bit, text in _SLOWDOWNS.items() if any(mask & bit for mask in held))
    yield DeviceFinding(
        "gpu-slowdown",
        Grade.SUSPECT,
        f"GPU {index}",
        Phrase("its clock is held down most of the time: {reasons}", reasons=joined(reasons)),
        "all other GPUs wait for it: check cooling and power",
    )


def _links(history: DeviceHistory, index: int) -> Iterator[DeviceFinding]:
    readings = [
        (at_s, gpu.nvlink_errors)
        for at_s, gpu in history.gpu(index, NVLINK_WINDOW_S)
        if gpu.nvlink_errors is not None
    ]
    minutes = {int(at_s // 60) for (_, before), (at_s, after) in pairwise(readings) if after > before}
    if len(minutes) > NVLINK_MINUTES:
        yield DeviceFinding(
            "nvlink-errors",
            Grade.SUSPECT,
            f"GPU {index}",
            Phrase("new NVLink errors in {count} of the last 30 minutes", count=len(minutes)),
            "have the NVLinks of this node tested (dcgmi diag)",
        )


def _flaps(history: DeviceHistory, place: str) -> Iterator[DeviceFinding]:
    # a port that was briefly gone has no counters in that reading, which is not a count of 0
    readings = [port.counters for _, port in history.port(place, FLAP_WINDOW_S)]
    counts = [[one[name] for one in readings if name in one] for name in LINK_COUNTERS]
    flaps = sum(count[-1] - count[0] for count in counts if count)
    if flaps >= FLAPS:
        yield DeviceFinding(
            "rdma-port-flaps",
            Grade.SUSPECT,
            place,
            Phrase("its link was lost {flaps} times in half an hour", flaps=flaps),
            "replace the cable or transceiver",
        )
