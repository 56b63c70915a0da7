"""The audit log, and how busy workers, nodes and groups were."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated

from pydantic import StringConstraints

from platform_launch.procguard.api.shapes import Shape
from platform_launch.sentences import Value


class AuditEvent(Shape):
    """An entry of the audit log: what changed, when, and who did it (``server``: no user).

    ``detail`` is English, made from ``code`` and ``values``; all three are empty if there are no details.
    """

    id: int
    at: datetime
    who: str
    action: str
    object: str
    detail: str
    code: str = ""
    values: dict[str, Value] = {}


class EventFilter(Shape):
    """Selects entries of the audit log: ``on`` a group, node or user, by ``who``, of an action. Empty:
    all.
    """

    on: Annotated[str, StringConstraints(max_length=140)] = ""
    who: Annotated[str, StringConstraints(max_length=64)] = ""
    action: Annotated[str, StringConstraints(max_length=32)] = ""


class ChartKind(str, Enum):
    """What is measured."""

    WORKER = "workers"
    NODE = "nodes"
    GROUP = "groups"


class Chart(Shape):
    """Measurements: each series has a value for each time (seconds since 1970), None if there was none.

    Series: gpu, gpu_lowest and cpu in percent, gpu_memory and memory in GiB, steps per second.
    """

    times: list[float]
    series: dict[str, list[float | None]]
