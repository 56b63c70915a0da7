from __future__ import annotations

import pytest

from platform_launch.environment import Environment
from platform_launch.plan.proxies import proxy_variables
from tests.plan.machines import job


def chosen(**env: str) -> dict[str, str]:
    found = proxy_variables(Environment(env), job(hosts=("n0", "n1")))
    assert all("nodes connect to each other directly" in variable.reason for variable in found)
    return {variable.name: variable.value for variable in found}


@pytest.mark.parametrize("proxy", ["http_proxy", "HTTPS_PROXY", "all_proxy", "grpc_proxy"])
def test_nodes_are_reached_without_the_proxy(proxy: str) -> None:
    value = "localhost,127.0.0.1,10.0.0.1,n0,n1"
    assert chosen(**{proxy: "http://proxy:3128"}) == {"no_proxy": value, "NO_PROXY": value}


def test_what_was_exempt_stays_exempt_under_both_names() -> None:
    env = chosen(http_proxy="http://proxy:3128", NO_PROXY=".svc, 10.0.0.1", no_proxy="localhost")
    assert env["no_proxy"] == env["NO_PROXY"] == "localhost,.svc,10.0.0.1,127.0.0.1,n0,n1"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"no_proxy": "a"},
        {"http_proxy": "http://p", "no_proxy": "*"},
        {"http_proxy": "http://p", "no_proxy": "localhost,127.0.0.1,10.0.0.1,n0,n1"},
    ],
)
def test_without_a_proxy_or_a_gap_nothing_is_set(env: dict[str, str]) -> None:
    assert chosen(**env) == {}
