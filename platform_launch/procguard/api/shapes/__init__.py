"""What people see: the JSON of the API, which the web page uses as well.

Each file is a subject; what all of them use is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

_Shape = TypeVar("_Shape", bound="Shape")


class Shape(BaseModel):
    """A document of the API. What is sent in must hold nothing unknown: a typing error is not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def but(self: _Shape, **changes: object) -> _Shape:
        """Return the same document with other values of some fields, which are not validated."""
        return self.model_copy(update=changes)


@dataclass(frozen=True)
class Problem:
    """Why ranks cannot be given out or a field cannot be taken, or what to know before a start.

    ``code`` names the case for translations, ``values`` fill it in; ``text`` and ``hint`` are the English.
    """

    code: str
    text: str
    hint: str = ""
    values: dict[str, str] = field(default_factory=dict)


class Refusal(Shape):
    """Every error of the API: what was wrong and what to do. ``problems`` where a group cannot start.

    ``error`` and ``hint`` are English. ``code`` names what people meet on the page, where ``values`` fill in
    its words.
    """

    error: str
    hint: str = ""
    problems: list[Problem] = []
    code: str = ""
    values: dict[str, str] = {}
