"""What agents ask: to join, what is wanted, and to take their logs."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from platform_launch.procguard.ranks import WorkerName
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.beats import answer_beat
from platform_launch.procguard.server.gate import Unauthorized, bearer
from platform_launch.procguard.server.logs import Full
from platform_launch.procguard.server.parts import Here, node_of
from platform_launch.procguard.wire import Beat, Generation, Join, Joined, LogTaken, Number, Orders

router = APIRouter(prefix="/api/v1/agent", tags=["agents"])

# A slow disk must not hold the threads that people's requests need.
_DISK = anyio.CapacityLimiter(8)
_join_token = HTTPBearer(scheme_name="join token", description="The server's join token.", auto_error=False)
credential = HTTPBearer(
    scheme_name="agent credential", description="What joining was answered with.", auto_error=False
)


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


@router.post("/join", operation_id="join", responses=refusals(400, 401, 409, 413, 422, 503))
def join(
    wanted: Join,
    request: Request,
    here: Here,
    _token: Annotated[HTTPAuthorizationCredentials | None, Security(_join_token)],
) -> Joined:
    """Register a node and its workers with the join token, and get the agent's own credential."""
    if not hmac.compare_digest((bearer(request) or "").encode(), here.join_token.encode()):
        raise Unauthorized("the join token is not this server's", "it lies in the server's join-token file")
    return here.control.join(wanted)


@router.post(
    "/heartbeat",
    operation_id="heartbeat",
    response_model=Orders,
    responses=refusals(401, 409, 413, 422),
    openapi_extra=_body("application/json", Beat.model_json_schema()),
)
async def heartbeat(
    request: Request,
    here: Here,
    _credential: Annotated[HTTPAuthorizationCredentials | None, Security(credential)],
) -> Response:
    """Say what a node's workers do, and get what is wanted of them."""
    return answer_beat(here, bearer(request), await request.body())


@router.post(
    "/log",
    operation_id="log",
    responses=refusals(401, 404, 413, 422, 503, 507),
    openapi_extra=_body("application/octet-stream", {"type": "string", "format": "binary"}),
)
async def log(
    request: Request,
    here: Here,
    number: Annotated[Number, Query(description="The worker's number on its node.")],
    generation: Annotated[Generation, Query(description="The run the bytes are of.")],
    offset: Annotated[int, Query(ge=0, lt=2**53, description="Bytes of this run's log before these.")],
    _credential: Annotated[HTTPAuthorizationCredentials | None, Security(credential)],
) -> LogTaken:
    """Take a chunk of a worker's log, the bytes as they were written. Sending one twice does no harm."""
    worker = here.control.worker(str(WorkerName(node_of(bearer(request), here), number))).worker
    try:
        data = await request.body()
        have = await to_thread.run_sync(here.logs.append, worker, generation, offset, data, limiter=_DISK)
    except ClientDisconnect as error:
        raise Unauthorized("the agent left in the middle of its chunk") from error
    except Full:
        here.meter.log_refused.inc()
        raise
    here.meter.log_bytes.inc(len(data))
    return LogTaken(offset=have)
