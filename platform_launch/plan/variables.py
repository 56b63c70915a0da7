"""An exported or removed variable, with its reason."""

from __future__ import annotations

from platform_launch.values import dataclass


@dataclass(frozen=True)
class EnvVar:
    """One variable of the child's environment that this launcher sets.

    ``source`` names what decided (a package or a file), ``reason`` is a phrase for --print-env.
    """

    name: str
    value: str
    source: str
    reason: str


@dataclass(frozen=True)
class Removal:
    """One variable that is removed from the child's environment, and why."""

    name: str
    reason: str
