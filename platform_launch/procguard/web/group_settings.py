"""A group's settings on pages: a form that is being filled in, and two runs compared."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from platform_launch.procguard.api.shapes.groups import GroupSettings, RankPreview, RunDetail

if TYPE_CHECKING:
    from platform_launch.procguard.core.queries import Queries


def preview(queries: Queries, name: str, settings: bytes | None) -> dict[str, Any]:
    """Return the rank table of a group, with these settings (as JSON) instead of its own.

    ``invalid`` are the invalid fields: the field, a part of it (a variable's name), and whether ProcGuard
    sets it. There is no table then. Raises NotFound.
    """
    try:
        wanted = None if settings is None else GroupSettings.model_validate_json(settings)
    except ValidationError as error:
        return {"preview": RankPreview(), "invalid": [_invalid(trouble) for trouble in error.errors()[:5]]}
    return {"preview": queries.preview(name, wanted), "invalid": []}


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
