"""How busy workers, nodes and groups were."""

from __future__ import annotations

from enum import Enum

from platform_launch.procguard.api.shapes import Shape


class ChartKind(str, Enum):
    """What is measured."""

    WORKER = "workers"
    NODE = "nodes"
    GROUP = "groups"


class Chart(Shape):
    """Measurements: a value of each series for each time (seconds since 1970), None where there was none.

    Series: gpu, gpu_lowest and cpu in percent, gpu_memory and memory in GiB, steps a second.
    """

    times: list[float]
    series: dict[str, list[float | None]]
