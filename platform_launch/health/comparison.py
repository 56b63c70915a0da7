"""Faults that only a comparison of nodes shows: a slow GPU, a port with errors that others lack.

Each node publishes a sample of its last minutes. Thresholds: docs/decisions/0017.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from platform_launch.hardware.gpu_health import GpuHealth
from platform_launch.hardware.rdma import ERROR_COUNTERS
from platform_launch.health.finding import DeviceFinding, Grade
from platform_launch.health.reading import DeviceHistory
from platform_launch.text import Phrase

WINDOW_S = 300.0
_BUSY_PERCENT = 50
SLOW_SHARE = 0.6
_FEWEST_PEERS = 3
# A counter is an outlier if it grows by this much per minute, and this many times as fast as the others'.
ERRORS_A_MINUTE, TIMES_THE_OTHERS = 10.0, 10.0


@dataclass(frozen=True)
class GpuSample:
    """One GPU's last minutes. ``busy_clock_mhz`` is its mean clock while busy; None if it was idle.

    ``utilization_percent`` and ``memory_used_gib`` are of the last reading, None if it has none.
    """

    index: int
    name: str
    busy_clock_mhz: float | None = None
    pcie_replays_a_minute: float = 0.0
    utilization_percent: float | None = None
    memory_used_gib: float | None = None


@dataclass(frozen=True)
class PortSample:
    """One port's last minutes: how much each error counter grew per minute."""

    place: str
    errors_a_minute: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeSample:
    """A node's message to the others: its last minutes, and its findings."""

    node_rank: int
    host: str
    gpus: tuple[GpuSample, ...] = ()
    ports: tuple[PortSample, ...] = ()
    findings: tuple[DeviceFinding, ...] = ()


def sample(
    history: DeviceHistory, node_rank: int, host: str, findings: Iterable[DeviceFinding] = ()
) -> NodeSample:
    """Return the sample of a node's last five minutes; a comparison needs at least half of that."""
    last = history.last
    readings = history.within(WINDOW_S)
    long_enough = bool(readings) and readings[-1].at_s - readings[0].at_s >= WINDOW_S / 2
    gpus = [_gpu_sample(history, gpu, compares=long_enough) for gpu in last.gpus] if last else []
    ports = [_port_sample(history, port.place) for port in last.ports] if last and long_enough else []
    return NodeSample(node_rank, host, tuple(gpus), tuple(ports), tuple(findings))


def compare(samples: Sequence[NodeSample]) -> list[tuple[int, DeviceFinding]]:
    """Return the nodes that differ from all others, as (node rank, finding)."""
    return [*_slow_gpus(samples), *_replays(samples), *_port_errors(samples)]


def _gpu_sample(history: DeviceHistory, last: GpuHealth, *, compares: bool) -> GpuSample:
    readings = list(history.gpu(last.index, WINDOW_S)) if compares else []
    clocks = [
        gpu.sm_clock_mhz
        for _, gpu in readings
        if gpu.sm_clock_mhz is not None and (gpu.utilization_percent or 0) >= _BUSY_PERCENT
    ]
    busy = len(clocks) * 2 >= len(readings) > 0
    replays = [(at_s, gpu.pcie_replays) for at_s, gpu in readings if gpu.pcie_replays is not None]
    return GpuSample(
        last.index,
        last.name,
        sum(clocks) / len(clocks) if busy else None,
        _a_minute(replays),
        last.utilization_percent,
        last.memory_used_gib,
    )


def _port_sample(history: DeviceHistory, place: str) -> PortSample:
    readings = list(history.port(place, WINDOW_S))
    rates = {
        name: _a_minute([(at_s, port.counters[name]) for at_s, port in readings if name in port.counters])
        for name in ERROR_COUNTERS
    }
    return PortSample(place, {name: rate for name, rate in rates.items() if rate})


def _a_minute(counts: Sequence[tuple[float, int]]) -> float:
    if len(counts) < 2 or counts[-1][0] <= counts[0][0]:
        return 0.0
    return max(counts[-1][1] - counts[0][1], 0) * 60 / (counts[-1][0] - counts[0][0])


def _slow_gpus(samples: Sequence[NodeSample]) -> Iterator[tuple[int, DeviceFinding]]:
    """Compare busy GPUs of one kind with the median of the others."""
    kinds: dict[str, list[tuple[int, GpuSample, float]]] = {}
    for node in samples:
        for gpu in node.gpus:
            if gpu.busy_clock_mhz is not None:
                kinds.setdefault(gpu.name, []).append((node.node_rank, gpu, gpu.busy_clock_mhz))
    for members in kinds.values():
        if len(members) <= _FEWEST_PEERS:
            continue
        usual = _median([clock for _, _, clock in members])
        for rank, gpu, clock in members:
            if clock <= SLOW_SHARE * usual:
                yield (
                    rank,
                    DeviceFinding(
                        "gpu-slow",
                        Grade.SUSPECT,
                        f"GPU {gpu.index}",
                        Phrase(
                            "runs at {clock:.0f} MHz, the others at {usual:.0f} MHz", clock=clock, usual=usual
                        ),
                        "all other GPUs wait for it: check cooling and power, or leave the node out",
                    ),
                )


def _replays(samples: Sequence[NodeSample]) -> Iterator[tuple[int, DeviceFinding]]:
    rates = {
        (node.node_rank, f"GPU {gpu.index}"): gpu.pcie_replays_a_minute
        for node in samples
        for gpu in node.gpus
    }
    for (rank, where), rate, usual in _outliers(rates):
        what = Phrase("{rate:.0f} PCIe replays per minute, the others {usual:.0f}", rate=rate, usual=usual)
        hint = "have its slot, riser and cabling checked"
        yield rank, DeviceFinding("pcie-replays", Grade.SUSPECT, where, what, hint)


def _port_errors(samples: Sequence[NodeSample]) -> Iterator[tuple[int, DeviceFinding]]:
    for name in ERROR_COUNTERS:
        rates = {
            (node.node_rank, port.place): port.errors_a_minute.get(name, 0.0)
            for node in samples
            for port in node.ports
        }
        for (rank, where), rate, usual in _outliers(rates):
            what = Phrase(
                "{name} grows by {rate:.0f} per minute, on the others by {usual:.0f}",
                name=name,
                rate=rate,
                usual=usual,
            )
            hint = "check its cable, transceiver and switch port"
            yield rank, DeviceFinding("rdma-port-errors", Grade.SUSPECT, where, what, hint)


def _outliers(
    rates: Mapping[tuple[int, str], float],
) -> Iterator[tuple[tuple[int, str], float, float]]:
    if len(rates) <= _FEWEST_PEERS:
        return
    usual = _median(rates.values())
    for place, rate in rates.items():
        if rate >= ERRORS_A_MINUTE and rate >= TIMES_THE_OTHERS * usual:
            yield place, rate, usual


def _median(values: Iterable[float]) -> float:
    """Return the median. The standard library's module costs a megabyte of memory."""
    ranked = sorted(values)
    return ranked[len(ranked) // 2]
