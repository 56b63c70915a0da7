"""Routes for inspection: requested by people, answered by agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Query
from starlette.responses import Response

from platform_launch.observe.hang import judge
from platform_launch.observe.overview import MOST_LINES, finding_lines, place_lines, rarest, stack_lines
from platform_launch.observe.snapshot import NodeSnapshot
from platform_launch.procguard.api.ranks import Place, WorkerKind, WorkerName
from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes.groups import GroupPhase, RunDetail
from platform_launch.procguard.api.shapes.workers import WorkerShape
from platform_launch.procguard.api.wire import (
    Inspection,
    InspectionSentences,
    RanksReceived,
    RanksSeen,
    WorkerState,
)
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.assembly import Parts, ServerParts
from platform_launch.procguard.server.gate import Operator
from platform_launch.procguard.server.inspections import Answers
from platform_launch.procguard.server.routes.agents import AgentNode
from platform_launch.procguard.web.language import Words

router = APIRouter(prefix="/api/v1")

# The next heartbeat's answer has the question; then the slowest source of stacks needs its time.
_LIMIT_S = 20.0
# A browser cannot show megabytes, and most of thousands of stacks are the same.
_MOST_STACKS = 64


_Whole = Annotated[bool, Query(description="Return all places, and the stacks of all ranks.")]
_Language = Annotated[Literal["en", "zh"], Query(description="The language of the lines.")]


@router.post(
    "/groups/{name}/inspect",
    operation_id="inspect",
    tags=["groups"],
    response_model=Inspection,
    responses=refusals(401, 403, 404, 409, 422, 503),
)
async def inspect(
    name: str, parts: Parts, _person: Operator, whole: _Whole = False, language: _Language = "en"
) -> Response:
    """Return what all ranks of a running group are doing. Changes nothing; processes are asked for their
    stacks.
    """
    run, workers = await to_thread.run_sync(_running, parts, name)
    reachable = [_name(worker) for worker in workers if not worker.silent]
    answers = await parts.inspections.ask((name, run.generation), reachable, _LIMIT_S)
    # Serialized there as well: thousands of ranks would delay heartbeats here.
    document = await to_thread.run_sync(
        lambda: _seen(run, workers, answers, whole, Words(language)).model_dump_json()
    )
    return Response(document, media_type="application/json")


@router.post(
    "/agent/ranks", operation_id="ranks_seen", tags=["agents"], responses=refusals(400, 401, 413, 422)
)
async def ranks_seen(seen: RanksSeen, parts: Parts, node: AgentNode) -> RanksReceived:
    """Receive what the ranks of one of the node's workers are doing."""
    return RanksReceived(awaited=parts.inspections.answer(WorkerName(node, seen.number), seen))


def _name(worker: WorkerShape) -> WorkerName:
    return WorkerName(worker.node, worker.number)


def _running(parts: ServerParts, name: str) -> tuple[RunDetail, list[WorkerShape]]:
    """Return a group's run and its workers with a process. Raises RequestRefused if it does not run."""
    group = parts.control.queries.group(name)
    if group.phase not in (GroupPhase.RUNNING, GroupPhase.DEGRADED, GroupPhase.STOPPING):
        raise RequestRefused("group-at-rest", group=name)
    run = parts.control.queries.run(name, group.run_number)
    shapes = [parts.control.queries.worker(str(place.worker)) for place in run.places]
    alive = (WorkerState.RUNNING, WorkerState.STOPPING)
    return run, [worker for worker in shapes if worker.generation == run.generation and worker.state in alive]


def _seen(
    run: RunDetail, workers: Sequence[WorkerShape], answers: Answers, whole: bool, words: Words
) -> Inspection:
    places = {str(place.worker): place for place in run.places}
    nodes, silent = [], {}
    for worker in workers:
        place, seen = places[worker.worker], answers.get(_name(worker))
        if seen is None:
            silent[worker.worker] = place.node_rank
        else:
            nodes.append(_seen_at(run, place, worker, seen))
    moved = [seen.moved_s_ago for seen in answers.values() if seen.moved_s_ago is not None]
    moved_s_ago = min(moved, default=None)
    lines, ranks = place_lines(nodes), sum(len(node.ranks) for node in nodes)
    shown_lines, shown_ranks = (len(lines), ranks) if whole else (MOST_LINES, _MOST_STACKS)
    world_size = max((seen.world_size for seen in answers.values()), default=0) or run.world_size
    silent_nodes = {rank: worker for worker, rank in silent.items()}
    finding = finding_lines(judge(nodes, world_size, silent_nodes), moved_s_ago) if ranks else []
    return Inspection(
        group=run.group,
        run=run.number,
        ranks=ranks,
        nodes=len({node.node_rank for node in nodes}),
        moved_s_ago=moved_s_ago,
        finding=[words.render(one) for one in finding],
        lines=[words.render(one) for one in lines[:shown_lines]],
        sentences=InspectionSentences(finding=finding, lines=lines[:shown_lines]),
        stacks=stack_lines(nodes if whole else rarest(nodes, shown_ranks), words.render),
        more_places=max(0, len(lines) - shown_lines),
        more_ranks=max(0, ranks - shown_ranks),
        silent=sorted(silent),
    )


def _seen_at(run: RunDetail, place: Place, worker: WorkerShape, seen: RanksSeen) -> NodeSnapshot:
    """Return a worker's ranks under the names that people know."""
    first = place.local_rank if run.settings.kind is WorkerKind.PROCESS else 0
    gpus = {first + number: f"GPU {gpu.index}" for number, gpu in enumerate(worker.gpus)}
    return NodeSnapshot(place.node_rank, worker.node, 0.0, seen.ranks, gpus)
