"""Routes for agents: joining, heartbeats and logs."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import RequestRefused, Unavailable
from platform_launch.procguard.api.wire import (
    Generation,
    Heartbeat,
    JoinAnswer,
    JoinRequest,
    LogReceived,
    Number,
    WorkerOrders,
)
from platform_launch.procguard.server.answers import answer, invalid, refusals
from platform_launch.procguard.server.assembly import Parts, ServerParts, known
from platform_launch.procguard.server.gate import Unauthorized, address_of, bearer
from platform_launch.procguard.server.logs.store import Full
from platform_launch.procguard.server.throttle import TooMany
from platform_launch.sentences import sentence

router = APIRouter(prefix="/api/v1/agent", tags=["agents"])

# A slow disk must not use up the threads for people's requests.
_DISK = anyio.CapacityLimiter(8)
_join_token = HTTPBearer(scheme_name="join token", description="The server's join token.", auto_error=False)
_credential = HTTPBearer(
    scheme_name="agent credential", description="The credential in the answer to a join.", auto_error=False
)


async def _node_of(
    request: Request,
    parts: Parts,
    _shown: Annotated[HTTPAuthorizationCredentials | None, Security(_credential)],
) -> str:
    token = bearer(request.headers)
    return known(parts.control.who(token) if token else None)


AgentNode = Annotated[str, Depends(_node_of)]
"""The node whose agent sent a request."""


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


@router.post("/join", operation_id="join", responses=refusals(400, 401, 409, 413, 422, 429, 503))
def join(
    wanted: JoinRequest,
    request: Request,
    parts: Parts,
    _token: Annotated[HTTPAuthorizationCredentials | None, Security(_join_token)],
) -> JoinAnswer:
    """Register a node and its workers with the join token, and return the agent's own credential."""
    address = address_of(request)
    if not parts.is_join_token(bearer(request.headers)):
        _count_failed_join(parts, address, wanted.node)
        raise Unauthorized("wrong-join-token")
    try:
        if not parts.control.knows(wanted.node):
            parts.throttle.count_new_node(address)
        joined = parts.control.join(wanted)
    except RequestRefused:
        parts.meter.joins.labels("refused").inc()
        raise
    parts.meter.joins.labels("succeeded").inc()
    return joined


def _count_failed_join(parts: ServerParts, address: str, node: str) -> None:
    parts.meter.joins.labels("failed").inc()
    try:
        first_this_minute = parts.throttle.count_failed_join(address)
    except TooMany:
        parts.meter.joins.labels("throttled").inc()
        raise
    if first_this_minute:
        with suppress(Unavailable):  # the refusal matters more than the audit log
            detail = sentence("wrong-token", address=address or sentence("unknown-address"))
            parts.control.record("server", "join-failed", node, detail)


@router.post(
    "/heartbeat",
    operation_id="heartbeat",
    response_model=WorkerOrders,
    responses=refusals(401, 409, 413, 422),
    openapi_extra=_body("application/json", Heartbeat.model_json_schema()),
)
async def heartbeat(
    request: Request,
    parts: Parts,
    _shown: Annotated[HTTPAuthorizationCredentials | None, Security(_credential)] = None,
) -> Response:
    """Report the state of a node's workers, and get their orders. Answered from memory alone."""
    try:
        node = known(parts.control.who(bearer(request.headers) or ""))
        orders = answer_heartbeat(parts, node, await request.body())
    except ClientDisconnect:
        return answer(Unauthorized("agent-left"))
    except ValidationError as error:
        parts.meter.refused.inc()
        return invalid(error.errors(include_input=False, include_url=False))
    except RequestRefused as refused:
        parts.meter.refused.inc()
        return answer(refused)
    parts.meter.heartbeats.inc()
    return Response(orders.model_dump_json(), media_type="application/json")


def answer_heartbeat(parts: ServerParts, node: str, body: bytes) -> WorkerOrders:
    """Return a node's orders and the questions to it. Raises ValidationError, RequestRefused."""
    orders = parts.control.heartbeat(node, Heartbeat.model_validate_json(body))
    if questions := parts.inspections.of(node):
        orders = WorkerOrders(**{**dict(orders), "questions": questions})
    return orders


@router.post(
    "/log",
    operation_id="log",
    responses=refusals(401, 404, 413, 422, 503, 507),
    openapi_extra=_body("application/octet-stream", {"type": "string", "format": "binary"}),
)
async def log(
    request: Request,
    parts: Parts,
    number: Annotated[Number, Query(description="The worker's number on its node.")],
    generation: Annotated[Generation, Query(description="The run of these bytes.")],
    offset: Annotated[int, Query(ge=0, lt=2**53, description="Bytes of this run's log before these.")],
    node: AgentNode,
) -> LogReceived:
    """Store a chunk of a worker's log, the bytes as they were written. Sending it twice does no harm."""
    worker = parts.control.queries.worker(str(WorkerName(node, number))).worker
    try:
        data = await request.body()
        have = await to_thread.run_sync(parts.logs.append, worker, generation, offset, data, limiter=_DISK)
    except ClientDisconnect as error:
        raise Unauthorized("agent-left") from error
    except Full:
        parts.meter.log_refused.inc()
        raise
    parts.meter.log_bytes.inc(len(data))
    return LogReceived(offset=have)
