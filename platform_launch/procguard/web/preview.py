"""The rank table for a form as it is being filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.api.shapes.runs import RankPreview

if TYPE_CHECKING:
    from platform_launch.procguard.core.queries import Queries


def preview(queries: Queries, name: str, form: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the rank table of a group, with the form's fields as its settings.

    ``invalid`` are the fields that cannot be what they are: the field, a part of it (a variable's name), and
    whether ProcGuard sets that. There is no table then. Raises NotFound.
    """
    nothing = RankPreview(places=[], idle=[], problems=[], notes=[])
    if form is None:
        return {"preview": queries.preview(name), "invalid": []}
    values: dict[str, Any] = {key: text for key, text in form.items() if key in GroupSettings.model_fields}
    if not values.get("world_size"):
        values["world_size"] = None
    lines = [line.strip() for line in values.pop("environment", "").splitlines() if line.strip()]
    values["environment"] = {
        name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)
    }
    for field in ("owners", "links"):
        values[field] = values.pop(field, "").replace(",", " ").split()
    for field in ("queue_workers", "hold_until"):
        values[field] = values.get(field) or None
    try:
        settings = GroupSettings.model_validate(values)
    except ValidationError as error:
        return {"preview": nothing, "invalid": [_invalid(trouble) for trouble in error.errors()[:5]]}
    return {"preview": queries.preview(name, settings), "invalid": []}


def _invalid(trouble: Any) -> tuple[str, str, bool]:
    field, *part = (str(one) for one in trouble["loc"] if one != "[key]")
    return field, ": ".join(part), trouble["type"] == "set_by_procguard"
