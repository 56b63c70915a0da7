"""Hundreds of requests made from the OpenAPI document, good and malformed, are answered as documented."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.procguard.serving import TOKEN, FakeAgent, Served, served

if TYPE_CHECKING:  # every worker of every run would import it for this one test
    from schemathesis import APIOperation, Case

REQUESTS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("schema")) as found:
        yield found


@pytest.mark.nightly
def test_hundreds_of_requests_from_the_document(server: Served) -> None:
    import schemathesis
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

    checks = [not_a_server_error, status_code_conformance, response_schema_conformance]
    agent, people = FakeAgent(server, "gn6", 2), server.person()
    assert people.post("/api/v1/groups", json={"name": "kept"}).status_code == 201
    schema = schemathesis.openapi.from_dict(people.get("/openapi.json").json())
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) >= 25
    each = -(-REQUESTS // (2 * len(operations)))
    answered: Counter[int] = Counter()

    def credential(path: str) -> str:
        if path == "/api/v1/agent/join":
            return TOKEN
        if path.startswith("/api/v1/agent/"):
            return str(agent.http.headers["Authorization"].split()[1])
        return server.token("op")  # a new one each time: logging out is among the requests

    def ask(case: Case[Any]) -> None:
        headers = {"Authorization": f"Bearer {credential(case.path)}"}
        response = case.call(base_url=server.url, headers=headers)
        answered[response.status_code] += 1
        case.validate_response(response, checks=checks)

    for operation in sorted(operations, key=lambda found: found.method.upper() == "DELETE"):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            with suppress(Unsatisfiable):  # what takes nothing cannot be asked wrongly
                try_many(operation, mode, each, ask)

    assert sum(answered.values()) >= 0.8 * REQUESTS, answered
    assert {200, 201, 204, 401, 404, 409, 422} <= set(answered), answered
    assert people.get("/api/v1/groups/kept").status_code == 404  # deleting comes last
    assert people.get("/readyz").status_code == 200
    FakeAgent(server, "gn7").beat()


def try_many(
    operation: APIOperation[Any, Any, Any, Any],
    mode: Any,
    times: int,
    ask: Callable[[Case[Any]], None],
) -> None:
    """Make requests of one kind to one address, the same ones every time."""
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode

    named = {"name": "kept", "worker": "gn6-0", "node": "gn6", "number": 1, "kind": "groups", "token": "x"}
    there = {key: named[key] for key in re.findall(r"\{(\w+)\}", operation.path)}
    if mode is GenerationMode.NEGATIVE:
        there = {}

    @settings(
        max_examples=times,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode, path_parameters=there or None))
    def tried(case: Case[Any]) -> None:
        ask(case)

    tried()
