"""A warning about a plan, with an id that programs and the doctor may depend on."""

from __future__ import annotations

from platform_launch.values import dataclass


@dataclass(frozen=True)
class PlanWarning:
    """One warning. ``id`` is a finding's (docs/reference/findings.md), ``origin`` is what it is about."""

    id: str
    origin: str
    text: str
