"""Routes for groups: creating, changing, starting and stopping them."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query

from platform_launch.procguard.api.shapes.groups import (
    Changed,
    GroupSettings,
    GroupShape,
    Move,
    NewGroup,
    RankPreview,
    RunDetail,
    RunShape,
)
from platform_launch.procguard.api.shapes.logs import GroupLogPage, GroupLogQuery
from platform_launch.procguard.api.shapes.people import Person
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.assembly import Parts
from platform_launch.procguard.server.gate import Operator, Viewer, check_owner
from platform_launch.procguard.server.logs.merged import MergedLog, chosen_ranks
from platform_launch.procguard.server.routes.workers import SEARCHES, log_page

router = APIRouter(prefix="/api/v1", tags=["groups"])
_READ = refusals(401, 404, 422, 503)
_CHANGE = refusals(400, 401, 403, 404, 409, 413, 422, 503)


def _owner(name: str, parts: Parts, person: Operator) -> Person:
    check_owner(person, name, parts.control.queries.group(name).settings.owners)
    return person


Owner = Annotated[Person, Depends(_owner)]
"""A user who may change this group."""


@router.get("/groups", operation_id="groups", responses=refusals(401, 503))
def groups(parts: Parts, _person: Viewer) -> list[GroupShape]:
    """List all groups by name."""
    return parts.control.queries.groups()


@router.post("/groups", operation_id="create_group", status_code=201, responses=_CHANGE)
def create_group(new: NewGroup, parts: Parts, person: Operator) -> GroupShape:
    """Create a group without workers. Its creator becomes its owner, unless the server is configured
    otherwise.
    """
    owners = [person.name] if parts.settings.owners_default == "creator" else []
    return parts.control.create_group(new, person.name, owners)


@router.get("/groups/{name}", operation_id="group", responses=_READ)
def group(name: str, parts: Parts, _person: Viewer) -> GroupShape:
    """Return a group."""
    return parts.control.queries.group(name)


@router.delete("/groups/{name}", operation_id="delete_group", status_code=204, responses=_CHANGE)
def delete_group(name: str, parts: Parts, person: Owner) -> None:
    """Delete a group that is not active. Its workers stay, in no group."""
    parts.control.delete_group(name, person.name)


@router.put("/groups/{name}/settings", operation_id="change_settings", responses=_CHANGE)
def change_settings(name: str, settings: GroupSettings, parts: Parts, person: Owner) -> GroupShape:
    """Replace a group's settings. They take effect at the next start."""
    check_owner(person, name, settings.owners)  # so that nobody gives a group away by mistake
    return parts.control.change_settings(name, settings, person.name)


@router.get("/groups/{name}/runs", operation_id="runs", responses=_READ)
def runs(
    name: str,
    parts: Parts,
    _person: Viewer,
    before: Annotated[int | None, Query(ge=0, lt=2**53, description="Only runs with a lower number.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cause: Annotated[
        str, Query(max_length=200, description="Only runs whose failure contains this text.")
    ] = "",
) -> list[RunShape]:
    """List a group's runs, newest first."""
    return parts.control.queries.runs(name, before, limit, cause)


@router.get("/groups/{name}/runs/{number}", operation_id="run", responses=_READ)
def run(name: str, number: Annotated[int, Path(ge=0, lt=2**53)], parts: Parts, _person: Viewer) -> RunDetail:
    """Return a run with its settings and rank table."""
    return parts.control.queries.run(name, number)


@router.get("/groups/{name}/log", operation_id="read_group_log", responses=_READ)
async def read_group_log(
    name: str, parts: Parts, _person: Viewer, query: Annotated[GroupLogQuery, Query()]
) -> GroupLogPage:
    """Read the logs of all ranks of a run as one, in the order in which the server received the lines."""

    def read() -> GroupLogPage:
        chosen = chosen_ranks(query.ranks)
        number = parts.control.queries.group(name).run_number if query.run is None else query.run
        run = parts.control.queries.run(name, number)
        ended = run.outcome is not None
        places = [(one.rank, str(one.worker)) for one in run.places if chosen is None or one.rank in chosen]
        log = MergedLog(parts.logs, places, run.generation, ended=ended)
        line = query.rank is not None and query.line is not None
        target = log.of_line(query.rank or 0, query.line or 0) if line else None
        found = log_page(log, query, target)
        return GroupLogPage(**found, group=name, run=number, generation=run.generation, ended=ended)

    return await to_thread.run_sync(read, limiter=SEARCHES)


@router.get("/groups/{name}/ranks", operation_id="ranks", responses=_READ)
def ranks(name: str, parts: Parts, _person: Viewer) -> RankPreview:
    """Return the rank table of the next start."""
    return parts.control.queries.preview(name)


@router.post(
    "/groups/{name}/preview", operation_id="preview", responses=refusals(400, 401, 403, 404, 413, 422, 503)
)
def preview(name: str, settings: GroupSettings, parts: Parts, _person: Viewer) -> RankPreview:
    """Return the rank table with other settings. Changes nothing."""
    return parts.control.queries.preview(name, settings)


@router.post("/groups/{name}/start", operation_id="start", responses=_CHANGE)
def start(name: str, parts: Parts, person: Owner) -> Changed:
    """Start all workers of a group, or none. Starting twice is one start."""
    return parts.control.start(name, person.name)


@router.post("/groups/{name}/queue", operation_id="queue", responses=_CHANGE)
def queue(name: str, parts: Parts, person: Owner) -> Changed:
    """Start a group as soon as enough workers are free, first come, first served."""
    return parts.control.queue(name, person.name)


@router.post("/groups/{name}/stop", operation_id="stop", responses=_CHANGE)
def stop(name: str, parts: Parts, person: Owner) -> Changed:
    """Stop all workers of a group."""
    return parts.control.stop(name, person.name)


@router.post("/groups/{name}/restart", operation_id="restart", responses=_CHANGE)
def restart(name: str, parts: Parts, person: Owner) -> Changed:
    """Stop all workers of a group and start them again with the current settings."""
    return parts.control.restart(name, person.name)


@router.post("/move", operation_id="move", status_code=204, responses=_CHANGE)
def move(wanted: Move, parts: Parts, person: Operator) -> None:
    """Move workers to a group, or out of theirs. None of the groups may be active."""
    groups = {parts.control.queries.worker(worker).group for worker in wanted.workers} | {wanted.group}
    for group in sorted(name for name in groups if name is not None):
        _owner(group, parts, person)
    parts.control.move(wanted.workers, wanted.group, person.name)
