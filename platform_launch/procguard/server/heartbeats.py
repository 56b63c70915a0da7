"""Heartbeats: by far the most requests. Answered in the event loop, from memory."""

from __future__ import annotations

from pydantic import ValidationError
from starlette.responses import Response

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.wire import Heartbeat, WorkerOrders
from platform_launch.procguard.server.answers import answer, invalid
from platform_launch.procguard.server.parts import ServerParts, node_of


def answer_beat(parts: ServerParts, credential: str | None, body: bytes) -> Response:
    """Return the answer to a heartbeat, errors included."""
    try:
        orders = parts.control.heartbeat(node_of(credential, parts), Heartbeat.model_validate_json(body))
    except ValidationError as error:
        response = invalid(error.errors(include_input=False, include_url=False))
    except RequestRefused as refused:
        response = answer(refused)
    else:
        parts.meter.heartbeats.inc()
        return Response(_written(orders), media_type="application/json")
    parts.meter.refused.inc()
    return response


def _written(orders: WorkerOrders) -> bytes:
    return orders.__pydantic_serializer__.to_json(orders)
