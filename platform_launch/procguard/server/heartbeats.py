"""Heartbeats: by far the most requests. Answered in the event loop, from memory."""

from __future__ import annotations

from pydantic import ValidationError
from starlette.responses import Response

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.wire import Heartbeat, WorkerOrders
from platform_launch.procguard.server.answers import answer, invalid
from platform_launch.procguard.server.parts import ServerParts, known

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def answer_beat(parts: ServerParts, node: str | None, body: bytes) -> Response:
    """Return the answer to a heartbeat, errors included; ``node`` is whose credential it showed."""
    try:
        heard = known(node)
        orders = parts.control.heartbeat(heard, Heartbeat.model_validate_json(body))
    except ValidationError as error:
        response = invalid(error.errors(include_input=False, include_url=False))
    except RequestRefused as refused:
        response = answer(refused)
    else:
        parts.meter.heartbeats.inc()
        if questions := parts.inspections.of(heard):
            orders = WorkerOrders(**{**dict(orders), "questions": questions})
        return Response(orders.document, 200, _HEADERS, "application/json")
    parts.meter.refused.inc()
    return response
