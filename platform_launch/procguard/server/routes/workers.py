"""Workers and their logs."""

from __future__ import annotations

from typing import Annotated

import anyio
from anyio import to_thread
from fastapi import APIRouter, Path, Query
from starlette.responses import StreamingResponse

from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.gate import Operator, Viewer
from platform_launch.procguard.server.logs import Reader
from platform_launch.procguard.server.logs.reading import MAX_WINDOW
from platform_launch.procguard.server.parts import Here, Parts
from platform_launch.procguard.shapes import LogWindow, WorkerShape
from platform_launch.procguard.wire import Generation

router = APIRouter(prefix="/api/v1", tags=["workers"])
_READ = refusals(401, 404, 422, 503)

# A search reads all of a log: heartbeats get their part of the processor whoever else searches.
_SEARCHES = anyio.CapacityLimiter(1)

Worker = Annotated[str, Path(description="A worker: NODE-NUMBER, such as gn6-0.")]
Run = Annotated[Generation | None, Query(description="Which run; the newest that has a log by default.")]


@router.get("/workers", operation_id="workers", responses=refusals(401, 503))
def workers(here: Here, _person: Viewer) -> list[WorkerShape]:
    """List all workers by node and number."""
    return here.control.workers()


@router.get("/workers/{worker}", operation_id="worker", responses=_READ)
def worker(worker: Worker, here: Here, _person: Viewer) -> WorkerShape:
    """Return a worker."""
    return here.control.worker(worker)


@router.get("/workers/{worker}/log", operation_id="read_log", responses=_READ)
async def read_log(
    worker: Worker,
    here: Here,
    _person: Viewer,
    generation: Run = None,
    offset: Annotated[int, Query(ge=0, lt=2**53, description="Where to begin, in bytes.")] = 0,
    limit: Annotated[int, Query(ge=16, le=MAX_WINDOW, description="Bytes at most.")] = 64 * 1024,
    tail: Annotated[
        int | None, Query(ge=1, le=10_000, description="The last so many lines, instead of an offset.")
    ] = None,
    search: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="Return the lines that hold this, in any case."),
    ] = None,
) -> LogWindow:
    """Read a part of a worker's log, or search it. To follow it, ask again from `next_offset`."""

    def read() -> LogWindow:
        log = _reader(here, worker, generation)
        if search is not None:
            return log.search(search)
        return log.window(offset, limit) if tail is None else log.tail(tail, limit)

    return await to_thread.run_sync(read, limiter=None if search is None else _SEARCHES)


@router.get(
    "/workers/{worker}/log/download",
    operation_id="download_log",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "The log."}, **_READ},
)
def download_log(worker: Worker, here: Here, _person: Viewer, generation: Run = None) -> StreamingResponse:
    """Download what is kept of a worker's log."""
    log = _reader(here, worker, generation)
    name = f"{log.worker}-run-{log.generation}.log"  # a worker's name is letters, digits, dots and dashes
    return StreamingResponse(
        log.download(),
        media_type="text/plain; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@router.delete(
    "/nodes/{node}",
    operation_id="forget_node",
    status_code=204,
    responses=refusals(401, 403, 404, 409, 422, 503),
)
def forget_node(node: str, here: Here, person: Operator) -> None:
    """Forget a node that is gone: its workers and its agent's credential.

    Its logs stay until their room is needed.
    """
    here.control.forget(node, person.name)


def _reader(here: Parts, worker: str, generation: int | None) -> Reader:
    log = Reader(here.logs.root, worker, generation)
    if not log.generations:
        here.control.worker(worker)  # a node that was forgotten may have logs; who has neither is not found
    return log
