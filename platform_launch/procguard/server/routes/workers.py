"""Routes for workers, their logs, and nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Path, Query
from starlette.responses import StreamingResponse

from platform_launch.procguard.api.shapes.logs import LogQuery, PageLine, WorkerLogPage, WorkerLogQuery
from platform_launch.procguard.api.shapes.workers import Drain, NodeShape, WorkerShape
from platform_launch.procguard.api.wire import Generation
from platform_launch.procguard.control.queries import present
from platform_launch.procguard.core.registry import natural
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.assembly import Parts, ServerParts
from platform_launch.procguard.server.gate import Operator, Viewer
from platform_launch.procguard.server.logs.filtering import LineFilter
from platform_launch.procguard.server.logs.merged import LogPlace, MergedLog
from platform_launch.procguard.server.logs.reading import Reader

router = APIRouter(prefix="/api/v1", tags=["workers"])
_READ = refusals(401, 404, 422, 503)

# A search reads whole logs; one at a time leaves processor time for heartbeats.
SEARCHES = anyio.CapacityLimiter(1)

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
    return present(parts.control.queries.worker, _page(names, after, limit, _worker_order))


@router.get("/workers/{worker}", operation_id="worker", responses=_READ)
def worker(worker: Worker, parts: Parts, _person: Viewer) -> WorkerShape:
    """Return a worker."""
    return parts.control.queries.worker(worker)


@router.get("/workers/{worker}/log", operation_id="read_log", responses=_READ)
async def read_log(
    worker: Worker, parts: Parts, _person: Viewer, query: Annotated[WorkerLogQuery, Query()]
) -> WorkerLogPage:
    """Read a worker's log, with line numbers. To follow it, repeat with `after`."""

    def read() -> WorkerLogPage:
        reader = _reader(parts, worker, query.generation)
        log = MergedLog(parts.logs, [(0, worker)], reader.generation, ended=False)
        target = log.of_line(0, query.line) if query.line is not None else None
        if query.offset is not None:
            target = log.of_offset(query.offset)
        return WorkerLogPage(
            **log_page(log, query, target),
            worker=worker,
            generation=reader.generation,
            generations=reader.generations,
            runs=parts.control.queries.run_names(worker, reader.generations),
        )

    searched = bool(query.search) or query.errors
    return await to_thread.run_sync(read, limiter=SEARCHES if searched else None)


def log_page(log: MergedLog, query: LogQuery, target: LogPlace | None) -> dict[str, Any]:
    """Return the fields of :class:`LogPage`: the lines around ``target``, or those the query asks for."""
    if target is not None:
        page = log.around(target, query.limit)
    elif query.after is None:
        page = log.before(LogPlace.parse(query.before or ""), query.limit)
    else:
        wanted = LineFilter(query.search, expression=query.expression, errors=query.errors)
        page = log.after(LogPlace.parse(query.after), query.limit, wanted, query.context)
    lines = [
        PageLine(
            rank=one.place.rank,
            worker=one.worker,
            number=one.line.number,
            at=datetime.fromtimestamp(one.place.at_ms / 1000, timezone.utc),
            offset=one.line.offset,
            text=one.line.text,
            match=one.line.match,
            place=str(one.place),
        )
        for one in page.lines
    ]
    return {
        "lines": lines,
        "before": None if page.before is None else str(page.before),
        "after": str(page.after),
        "more": page.more,
        "read": page.read,
        "size": page.size,
        "target": None if target is None else str(target),
    }


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
    return present(parts.control.queries.node, _page(names, after, limit, natural))


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


def _reader(parts: ServerParts, worker: str, generation: int | None) -> Reader:
    log = Reader(parts.logs.root, worker, generation)
    if not log.generations:
        parts.control.queries.worker(
            worker
        )  # a removed node may still have logs; one with neither is not found
    return log
