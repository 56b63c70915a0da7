"""Routes for monitoring: liveness, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from platform_launch.procguard.api.refused import RequestRefused, Unavailable
from platform_launch.procguard.api.shapes import Shape
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.assembly import Parts
from platform_launch.procguard.server.gate import person_of

router = APIRouter(tags=["health"])


class Health(Shape):
    """The server answers."""

    status: str = "ok"


@router.get("/healthz", operation_id="alive")
async def alive() -> Health:
    """Return 200 as long as the server is alive. Uses neither database nor disk."""
    return Health()


@router.get("/readyz", operation_id="ready", responses=refusals(503))
def ready(parts: Parts) -> Health:
    """Return 200 if the database can be read and the control loop works, else 503 with the reason."""
    parts.accounts.find("")
    if parts.control_loop.trouble:
        raise Unavailable("not-ready", reason=parts.control_loop.trouble)
    return Health()


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}},
)
def metrics(parts: Parts, request: Request) -> Response:
    """Return counts for Prometheus; with a login also series by group, node and GPU."""
    try:
        named = person_of(parts.sessions, parts.proxy, request) is not None
    except RequestRefused:  # counts need neither a login nor the database
        named = False
    text = parts.meter.text(named=named)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
