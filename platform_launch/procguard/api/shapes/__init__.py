"""The JSON of the API, which the web page uses as well, a file per subject."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

_Shape = TypeVar("_Shape", bound="Shape")


class Shape(BaseModel):
    """A document of the API. Unknown fields are rejected, so a typo is never a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def but(self: _Shape, **changes: object) -> _Shape:
        """Return a copy with other values of some fields, which are not validated."""
        return self.model_copy(update=changes)


@dataclass(frozen=True)
class Problem:
    """Why ranks cannot be assigned, why a field is invalid, or what to know before a start.

    ``code`` and ``values`` are for translations; ``text`` and ``hint`` are English.
    """

    code: str
    text: str
    hint: str = ""
    values: dict[str, str | list[str]] = field(default_factory=dict)


class Refusal(Shape):
    """Every error of the API: what was wrong and what to do. ``problems`` are set if a group cannot start.

    ``error`` and ``hint`` are English; ``code`` and ``values`` are for programs and other languages.
    """

    error: str
    hint: str = ""
    problems: list[Problem] = []
    code: str = ""
    values: dict[str, str | list[str]] = {}
