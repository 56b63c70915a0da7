"""What people see: the JSON of the API, which the web page uses as well.

Each file is a subject; what all of them use is here.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """A document of the API. What is sent in must hold nothing unknown: a typing error is not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ProblemShape(Shape):
    """A :class:`~platform_launch.procguard.api.ranks.RankProblem`."""

    code: str
    text: str
    hint: str = ""
    values: dict[str, str] = {}


class Refusal(Shape):
    """Every error of the API: what was wrong and what to do. ``problems`` where a group cannot start.

    ``error`` and ``hint`` are English. ``code`` names what people meet on the page, where ``values`` fill in
    its words.
    """

    error: str
    hint: str = ""
    problems: list[ProblemShape] = []
    code: str = ""
    values: dict[str, str] = {}
