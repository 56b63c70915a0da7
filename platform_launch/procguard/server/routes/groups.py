"""Groups: made, set, moved to, started and stopped as one."""

from __future__ import annotations

from fastapi import APIRouter

from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.gate import Operator, Viewer
from platform_launch.procguard.server.parts import Here
from platform_launch.procguard.shapes import Changed, GroupSettings, GroupShape, Move, NewGroup, RankPreview

router = APIRouter(prefix="/api/v1", tags=["groups"])
_READ = refusals(401, 404, 422, 503)
_CHANGE = refusals(400, 401, 403, 404, 409, 413, 422, 503)


@router.get("/groups", operation_id="groups", responses=refusals(401, 503))
def groups(here: Here, _person: Viewer) -> list[GroupShape]:
    """List all groups by name."""
    return here.control.groups()


@router.post("/groups", operation_id="create_group", status_code=201, responses=_CHANGE)
def create_group(new: NewGroup, here: Here, person: Operator) -> GroupShape:
    """Create a group without workers."""
    return here.control.create_group(new, person.name)


@router.get("/groups/{name}", operation_id="group", responses=_READ)
def group(name: str, here: Here, _person: Viewer) -> GroupShape:
    """Return a group."""
    return here.control.group(name)


@router.delete("/groups/{name}", operation_id="delete_group", status_code=204, responses=_CHANGE)
def delete_group(name: str, here: Here, person: Operator) -> None:
    """Delete a group that is not active. Its workers are in no group then."""
    here.control.delete_group(name, person.name)


@router.put("/groups/{name}/settings", operation_id="change_settings", responses=_CHANGE)
def change_settings(name: str, settings: GroupSettings, here: Here, person: Operator) -> GroupShape:
    """Replace a group's settings. They concern its next start."""
    return here.control.change_settings(name, settings, person.name)


@router.get("/groups/{name}/ranks", operation_id="ranks", responses=_READ)
def ranks(name: str, here: Here, _person: Viewer) -> RankPreview:
    """Return the rank table a start would use now."""
    return here.control.preview(name)


@router.post(
    "/groups/{name}/preview", operation_id="preview", responses=refusals(400, 401, 403, 404, 413, 422, 503)
)
def preview(name: str, settings: GroupSettings, here: Here, _person: Viewer) -> RankPreview:
    """Return the rank table as it would be with other settings. Changes nothing."""
    return here.control.preview(name, settings)


@router.post("/groups/{name}/start", operation_id="start", responses=_CHANGE)
def start(name: str, here: Here, person: Operator) -> Changed:
    """Start all workers of a group or none. Twice is one start."""
    return here.control.start(name, person.name)


@router.post("/groups/{name}/stop", operation_id="stop", responses=_CHANGE)
def stop(name: str, here: Here, person: Operator) -> Changed:
    """Stop all workers of a group."""
    return here.control.stop(name, person.name)


@router.post("/groups/{name}/restart", operation_id="restart", responses=_CHANGE)
def restart(name: str, here: Here, person: Operator) -> Changed:
    """Stop all workers of a group and start them again with its settings of now."""
    return here.control.restart(name, person.name)


@router.post("/move", operation_id="move", status_code=204, responses=_CHANGE)
def move(wanted: Move, here: Here, person: Operator) -> None:
    """Move workers to a group, or out of theirs. None of the groups may be active."""
    here.control.move(wanted.workers, wanted.group, person.name)
