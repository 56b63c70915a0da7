"""How busy workers, nodes and groups were."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from platform_launch.procguard.api.shapes.charts import Chart, ChartKind
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.gate import Viewer
from platform_launch.procguard.server.parts import Parts

router = APIRouter(prefix="/api/v1/charts", tags=["charts"])
_READ = refusals(401, 404, 422, 503)


@router.get("/groups/{name}/ranks", operation_id="chart_ranks", responses=_READ)
def ranks(
    name: str, parts: Parts, _person: Viewer, series: Literal["gpu", "gpu_memory", "steps"] = "gpu"
) -> Chart:
    """Return one series of each rank of a group over the last hour; of many ranks the lowest 32."""
    parts.control.queries.group(name)
    return parts.history.ranks(name, series)


@router.get("/{kind}/{name}", operation_id="chart", responses=_READ)
def chart(
    kind: ChartKind,
    name: str,
    parts: Parts,
    _person: Viewer,
    span: Annotated[
        Literal["hour", "days"], Query(description="`days`: of groups and nodes, thinned.")
    ] = "hour",
) -> Chart:
    """Return the series of a worker, node or group."""
    look = {
        ChartKind.WORKER: parts.control.queries.worker,
        ChartKind.NODE: parts.control.queries.node,
        ChartKind.GROUP: parts.control.queries.group,
    }
    look[kind](name)  # is there such a thing?
    return parts.history.chart(kind, name, days=span == "days")
