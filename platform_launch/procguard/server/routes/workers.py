"""Routes for workers, their logs, and nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import anyio
from anyio import to_thread
from fastapi import APIRouter, Path, Query
from starlette.responses import StreamingResponse

from platform_launch.procguard.api.refused import NotFound
from platform_launch.procguard.api.shapes.logs import LogWindow
from platform_launch.procguard.api.shapes.workers import Drain, NodeShape, WorkerShape
from platform_launch.procguard.api.wire import Generation
from platform_launch.procguard.core.registry import natural
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.assembly import Parts, ServerParts
from platform_launch.procguard.server.gate import Operator, Viewer
from platform_launch.procguard.server.logs.filtering import LineFilter
from platform_launch.procguard.server.logs.reading import MAX_WINDOW, Reader

router = APIRouter(prefix="/api/v1", tags=["workers"])
Shape = TypeVar("Shape")
_READ = refusals(401, 404, 422, 503)

# A search reads a whole log; one at a time leaves processor time for heartbeats.
SEARCHES = anyio.CapacityLimiter(1)
MOST_CONTEXT = 20
SEARCH = "Return lines that contain this, ignoring case."
EXPRESSION = "`search` is a regular expression (RE2)."
ERRORS = "Return lines that look like errors."
CONTEXT = "Lines of context around each match."

Worker = Annotated[str, Path(description="A worker: NODE-NUMBER, such as gn6-0.")]
RunNumber = Annotated[Generation | None, Query(description="The run; the newest one with a log by default.")]


MOST_LISTED = 1_000
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
After = Annotated[str, Query(max_length=80, description="Only entries after this one, in the list's order.")]


@router.get("/workers", operation_id="workers", responses=refusals(401, 422, 503))
def workers(
    parts: Parts, _person: Viewer, limit: Limit = MOST_LISTED, after: After = ""
) -> list[WorkerShape]:
    """List workers by node and number, in pages: pass the last one's name as `after` for the next."""
    names = parts.control.queries.worker_names()
    return _found(parts.control.queries.worker, _page(names, after, limit, _worker_order))


@router.get("/workers/{worker}", operation_id="worker", responses=_READ)
def worker(worker: Worker, parts: Parts, _person: Viewer) -> WorkerShape:
    """Return a worker."""
    return parts.control.queries.worker(worker)


@router.get("/workers/{worker}/log", operation_id="read_log", responses=_READ)
async def read_log(
    worker: Worker,
    parts: Parts,
    _person: Viewer,
    generation: RunNumber = None,
    offset: Annotated[int, Query(ge=0, lt=2**53, description="Where to start, in bytes.")] = 0,
    limit: Annotated[int, Query(ge=16, le=MAX_WINDOW, description="Maximum number of bytes.")] = 64 * 1024,
    tail: Annotated[
        int | None, Query(ge=1, le=10_000, description="Number of last lines, instead of an offset.")
    ] = None,
    line: Annotated[
        int | None, Query(ge=1, lt=2**53, description="The part around this line, instead of an offset.")
    ] = None,
    search: Annotated[str | None, Query(min_length=1, max_length=200, description=SEARCH)] = None,
    expression: Annotated[bool, Query(description=EXPRESSION)] = False,
    errors: Annotated[bool, Query(description=ERRORS)] = False,
    context: Annotated[int, Query(ge=0, le=MOST_CONTEXT, description=CONTEXT)] = 0,
) -> LogWindow:
    """Read a part of a worker's log, or search it. To follow it, repeat with `next_offset`.

    A search runs for half a second, or until it has 500 lines; with `more`, repeat it.
    """
    searched = search is not None or errors

    def read() -> LogWindow:
        log = _reader(parts, worker, generation)
        if searched:
            wanted = LineFilter(search or "", expression=expression, errors=errors)
            found = log.search(wanted, offset, context=context)
        elif line is not None:
            found = log.at_line(line, limit)
        else:
            found = log.window(offset, limit) if tail is None else log.tail(tail, limit)
        return found.model_copy(update={"runs": parts.control.queries.run_names(worker, found.generations)})

    return await to_thread.run_sync(read, limiter=SEARCHES if searched else None)


@router.get(
    "/workers/{worker}/log/download",
    operation_id="download_log",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "The log."}, **_READ},
)
def download_log(
    worker: Worker, parts: Parts, _person: Viewer, generation: RunNumber = None
) -> StreamingResponse:
    """Download what is stored of a worker's log."""
    log = _reader(parts, worker, generation)
    name = f"{log.worker}-run-{log.generation}.log"  # a worker's name is letters, digits, dots and dashes
    return StreamingResponse(
        log.download(),
        media_type="text/plain; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@router.get("/nodes", operation_id="nodes", responses=refusals(401, 422, 503))
def nodes(parts: Parts, _person: Viewer, limit: Limit = MOST_LISTED, after: After = "") -> list[NodeShape]:
    """List nodes by name, in pages: pass the last one's name as `after` for the next."""
    names = parts.control.queries.node_names()
    return _found(parts.control.queries.node, _page(names, after, limit, natural))


@router.get("/nodes/{node}", operation_id="node", responses=_READ)
def node(node: str, parts: Parts, _person: Viewer) -> NodeShape:
    """Return a node."""
    return parts.control.queries.node(node)


@router.put(
    "/nodes/{node}/drain",
    operation_id="drain_node",
    responses=refusals(400, 401, 403, 404, 413, 422, 503),
)
def drain_node(node: str, wanted: Drain, parts: Parts, person: Operator) -> NodeShape:
    """Keep new runs off a node, or end that. What runs there continues."""
    return parts.control.drain(node, wanted.drained, person.name)


@router.post(
    "/nodes/{node}/release",
    operation_id="release_node",
    responses=refusals(401, 403, 404, 409, 422, 503),
)
def release_node(node: str, parts: Parts, person: Operator) -> NodeShape:
    """Release a node from quarantine: its agent updates the quarantine file."""
    return parts.control.release(node, person.name)


@router.delete(
    "/nodes/{node}",
    operation_id="forget_node",
    status_code=204,
    responses=refusals(401, 403, 404, 409, 422, 503),
)
def forget_node(node: str, parts: Parts, person: Operator) -> None:
    """Remove a node that is gone, with its workers and its agent's credential.

    Its logs stay until their space is needed.
    """
    parts.control.forget(node, person.name)


def _page(names: Sequence[str], after: str, limit: int, order: Callable[[str], Any]) -> Sequence[str]:
    """Return the names of a page. ``after`` may be gone by now: its position in the order counts."""
    first = bisect_right(names, order(after), key=order) if after else 0
    return names[first : first + limit]


def _worker_order(worker: str) -> tuple[object, int]:
    node, _, number = worker.rpartition("-")
    return natural(node), int(number) if number.isdecimal() else -1


def _found(find: Callable[[str], Shape], names: Sequence[str]) -> list[Shape]:
    found = []
    for name in names:
        with suppress(NotFound):  # its node was removed just now
            found.append(find(name))
    return found


def _reader(parts: ServerParts, worker: str, generation: int | None) -> Reader:
    log = Reader(parts.logs.root, worker, generation)
    if not log.generations:
        parts.control.queries.worker(
            worker
        )  # a removed node may still have logs; one with neither is not found
    return log
