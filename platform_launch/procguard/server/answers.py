"""Errors as answers: always a ``Refusal``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes import Problem, Refusal
from platform_launch.procguard.api.wire import NODE_PATTERN

_LOG = logging.getLogger(__name__)
_MEANINGS = {
    400: "The request is malformed.",
    401: "Not logged in, or an unknown credential.",
    403: "Not allowed for this role, node or page.",
    404: "Not found.",
    409: "Refused; nothing changed.",
    413: "The body is too long.",
    422: "A field is missing, unknown or invalid.",
    429: "Too many login attempts, or joins with a wrong token.",
    503: "The database or the disk cannot be used right now; nothing changed. Try again.",
    507: "The disk is full.",
}
_NAME_IN_WORDS = "expected 1 to 64 letters, digits and _ . -, starting and ending with a letter or digit"
_LIMITS = ("min_length", "max_length", "ge", "gt", "le", "lt")
_KINDS_OF_INPUT = {
    "missing": "input-missing",
    "extra_forbidden": "input-unknown",
    "string_too_short": "input-short",
    "string_too_long": "input-long",
    "too_long": "input-many",
    "greater_than_equal": "input-low",
    "less_than_equal": "input-high",
    "int_type": "input-number",
    "int_parsing": "input-number",
    "float_type": "input-number",
    "float_parsing": "input-number",
    "finite_number": "input-number",
    "int_from_float": "input-whole",
    "set_by_procguard": "input-own-variable",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of a route, for the OpenAPI document."""
    return {status: {"model": Refusal, "description": _MEANINGS[status]} for status in statuses}


def add_answers(app: FastAPI) -> None:
    """Turn exceptions into answers."""
    app.add_exception_handler(RequestRefused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, fault)


def answer(refused: RequestRefused) -> Response:
    """Return the answer to a refused request."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
    return JSONResponse(refused.refusal.model_dump(), refused.status, headers)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return answer(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return invalid(error.errors())


def invalid(errors: Sequence[Mapping[str, Any]]) -> Response:
    """Return the answer to an invalid document, from pydantic's errors. The input is not repeated."""
    found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {_message(one)}" for one in errors[:10])
    # Names of unknown fields come from outside: half of a surrogate pair cannot be encoded.
    text = found[:2_000].encode(errors="replace").decode()
    problems = [_input_problem(one) for one in errors[:10]]
    return JSONResponse(RequestRefused("bad-input", problems=problems, fields=text).refusal.model_dump(), 422)


def _message(error: Mapping[str, Any]) -> str:
    """Return pydantic's message, or the rule for names if their pattern did not match."""
    is_name = (error.get("ctx") or {}).get("pattern") == NODE_PATTERN
    return _NAME_IN_WORDS if is_name else str(error["msg"])


def _input_problem(error: Mapping[str, Any]) -> Problem:
    """Return what is wrong with a field as one of few codes, from pydantic's error type."""
    where, limits = [str(part) for part in error["loc"]], error.get("ctx") or {}
    field = ".".join(where[1:] if where[:1] == ["body"] else where)[:200].encode(errors="replace").decode()
    limit = next((f"{limits[name]:g}" for name in _LIMITS if name in limits), "")
    kind = str(error["type"])
    code = _KINDS_OF_INPUT.get(kind, "input-form")
    message = _message(error)[:500].encode(errors="replace").decode()
    return Problem(code=code, text=f"{field}: {message}", values={"field": field, "limit": limit})


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and wants_page(request):
        page: Response = await run_in_threadpool(request.app.state.missing_page, request)
        return page
    return JSONResponse(Refusal(error=str(error.detail)).model_dump(), error.status_code, error.headers)


def wants_page(request: Request) -> bool:
    """Return whether a browser opens an address, rather than a script calling the API."""
    return request.method == "GET" and "text/html" in request.headers.get("Accept", "")


async def fault(request: Request, error: Exception) -> Response:
    """Return the answer to an unexpected error, and log it."""
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse(RequestRefused("server-fault").refusal.model_dump(), 500)
