"""What two runs began with, where it differs."""

from __future__ import annotations

import shlex

from platform_launch.procguard.api.shapes.runs import RunDetail

_LONGEST = 400


def differences(one: RunDetail, other: RunDetail) -> list[tuple[str, str, str]]:
    """Return what differs, each with the values of both runs, as text."""
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
