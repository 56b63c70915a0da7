"""Why a request is not carried out, in the form every answer of the API has."""

from __future__ import annotations

from collections.abc import Sequence

from platform_launch.procguard.api.shapes import Problem, Refusal


class RequestRefused(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is not carried out, and that changed nothing. ``status`` is the answer's HTTP status."""

    status = 409

    def __init__(
        self,
        error: str,
        hint: str = "",
        problems: Sequence[Problem] = (),
        *,
        code: str = "",
        **values: str,
    ) -> None:
        super().__init__(error)
        self.refusal = Refusal(error=error, hint=hint, problems=list(problems), code=code, values=values)


class NotFound(RequestRefused):
    """There is no such group, worker or user."""

    status = 404


class Unavailable(RequestRefused):
    """The database cannot be written now (full, locked, gone). Nothing changed: try again later."""

    status = 503


class Superseded(Unavailable):
    """Another server has this database now: this one decides nothing any more, and should be ended."""
