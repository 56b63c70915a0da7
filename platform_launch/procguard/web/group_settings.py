"""A group's settings on pages: a form that is being filled in, and two runs compared."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from platform_launch.procguard.api.shapes.groups import GroupSettings, RankPreview, RunDetail

if TYPE_CHECKING:
    from platform_launch.procguard.core.queries import Queries


def preview(queries: Queries, name: str, form: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the rank table of a group, with the form's fields as its settings.

    ``invalid`` are the invalid fields: the field, a part of it (a variable's name), and whether ProcGuard
    sets it. There is no table then. Raises NotFound.
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


_LONGEST = 400


def differences(one: RunDetail, other: RunDetail) -> list[tuple[str, str, str]]:
    """Return the differences, each with the values of both runs as text."""
    left, right = _values(one), _values(other)
    names = [*left, *(name for name in right if name not in left)]
    return [
        (name, left.get(name, ""), right.get(name, ""))
        for name in names
        if left.get(name, "") != right.get(name, "")
    ]


def _values(run: RunDetail) -> dict[str, str]:
    values = {"command": shlex.join(run.command)}
    for name, value in run.settings.model_dump(mode="json").items():
        if isinstance(value, dict):
            values |= {f"{name} {key}": str(text) for key, text in value.items()}
        elif name != "command":
            values[name] = "" if value is None else str(value)
    names = " ".join(str(place.worker) for place in run.places)
    return values | {"workers": names if len(names) <= _LONGEST else f"{names[:_LONGEST]}…"}
