"""An exported or removed variable, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EnvVar:
    """One variable of the child's environment that this launcher sets.

    ``source`` names who decided (a room or a file), ``reason`` is a phrase a user reads in --print-env.
    """

    name: str
    value: str
    source: str
    reason: str


@dataclass(frozen=True)
class Removal:
    """One variable taken out of the child's environment, and why."""

    name: str
    reason: str
