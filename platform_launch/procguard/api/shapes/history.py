"""The audit log, and how busy workers, nodes and groups were."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated

from pydantic import Field

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
    """Selects entries of the audit log. Empty: all."""

    on: Annotated[str, Field(max_length=140, description="Only events of this group, node or user.")] = ""
    who: Annotated[str, Field(max_length=64, description="Only events by this user, or `server`.")] = ""
    action: Annotated[
        str, Field(max_length=32, description="Only events of this kind, such as `failed`.")
    ] = ""


class EventQuery(EventFilter):
    """Which entries of the audit log to list."""

    before: Annotated[int | None, Field(ge=0, lt=2**53, description="Only events with a lower id.")] = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100


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
