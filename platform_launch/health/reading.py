"""All devices of a node at one moment, and the readings of the last half hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from platform_launch.hardware.gpu_health import GpuHealth, Xid
from platform_launch.hardware.rdma import PortHealth

KEPT_S = 1800.0
_KEPT_EVERY_S = 14.0
_MOST_XIDS = 64


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """``at_s`` is monotonic."""

    at_s: float
    gpus: tuple[GpuHealth, ...] = ()
    ports: tuple[PortHealth, ...] = ()


class DeviceHistory:
    """The first reading, for comparison, those of the last half hour, and all XIDs."""

    def __init__(self) -> None:
        self._readings: deque[DeviceReading] = deque()
        self.first: DeviceReading | None = None
        self.xids: tuple[Xid, ...] = ()

    @property
    def last(self) -> DeviceReading | None:
        """The newest reading."""
        return self._readings[-1] if self._readings else None

    def add(self, reading: DeviceReading, xids: Iterable[Xid] = ()) -> None:
        """Add a reading."""
        self.first = self.first or reading
        if len(self._readings) > 1 and reading.at_s - self._readings[-2].at_s < _KEPT_EVERY_S:
            self._readings[-1] = reading  # more frequent than is worth its memory
        else:
            self._readings.append(reading)
        while self._readings[0].at_s < reading.at_s - KEPT_S:
            self._readings.popleft()
        self.xids = (*self.xids, *xids)[-_MOST_XIDS:]

    def within(self, seconds: float) -> list[DeviceReading]:
        """Return the readings of the last seconds, the oldest first."""
        if not self._readings:
            return []
        since = self._readings[-1].at_s - seconds
        return [reading for reading in self._readings if reading.at_s >= since]

    def gpu(self, index: int, seconds: float) -> Iterator[tuple[float, GpuHealth]]:
        """Yield one GPU's readings of the last seconds with their times, the oldest first."""
        for reading in self.within(seconds):
            for gpu in reading.gpus:
                if gpu.index == index:
                    yield reading.at_s, gpu

    def port(self, place: str, seconds: float) -> Iterator[tuple[float, PortHealth]]:
        """Yield one port's readings of the last seconds with their times, the oldest first."""
        for reading in self.within(seconds):
            for port in reading.ports:
                if port.place == place:
                    yield reading.at_s, port
