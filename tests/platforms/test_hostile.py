"""Environment values are hostile: they end as a number, a host or a refusal; never as a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.platforms import detect
from platform_launch.topology import Topology

Node = Callable[..., Environment]
Refusal = Callable[..., TopologyError]
Vector = dict[str, Any]

HOSTILE = [
    "a\nb",
    "'\"",
    "$(reboot)",
    "`x`; rm -rf /",
    "9" * 5000,
    "99999999",
    "-1",
    "0",
    "0x10",
    "1_0",
    "2²",
    "٣",
    " 2 ",
    "a[1-",
    "a[1-999999999]",
    "5(x999999999)",
    "[" * 100_000,
    '{"cluster":{"workerpool0":[1]}}',
    '{"hosts":3}',
    "null",
    ",",
    "::",
    "../../../etc/passwd",
    "/dev/zero",
    "x" * 100_000,
    "\udcff",
]
HOST = re.compile(r"[A-Za-z0-9_.:%-]+")
LONGEST_MESSAGE = 2000


def first_of_each_dialect() -> list[Vector]:
    text = (Path(__file__).parent / "more_vectors.json").read_text(encoding="utf-8")
    vectors: list[Vector] = json.loads(text)["vectors"]
    return list({vector["dialect"]: vector for vector in reversed(vectors)}.values())


@pytest.mark.parametrize("vector", first_of_each_dialect(), ids=lambda vector: vector["dialect"])
def test_a_hostile_value_in_any_variable_is_read_or_refused(vector: Vector, node: Node) -> None:
    node({}, vector.get("files"))
    for name in vector["env"]:
        for value in HOSTILE:
            outcome = read(node({**vector["env"], name: value}))
            if isinstance(outcome, TopologyError):
                assert len(outcome.message) < LONGEST_MESSAGE, (name, value[:20])
            else:
                hosts = (outcome.master_addr, *outcome.hosts)
                assert all(HOST.fullmatch(host) for host in hosts), (name, value[:20])


def read(environment: Environment) -> Topology | TopologyError:
    try:
        return detect(environment)
    except TopologyError as error:
        return error


@pytest.mark.parametrize("value", ["0x10", "-1", "2²", "٣", "1_0", "1e3", "two", "1.0", "+1", "9" * 30])
def test_only_plain_decimal_numbers_are_ranks(value: str, node: Node, refusal: Refusal) -> None:
    variables = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": value}
    error = refusal(node(variables))
    assert re.fullmatch(r"RANK='.+' is (not a whole number|out of range): expected 0–\d+", error.message)


def test_blanks_around_a_value_do_not_matter(node: Node) -> None:
    variables = {"MASTER_ADDR": " a ", "MASTER_PORT": " 29500\n", "WORLD_SIZE": " 4", "RANK": "2 "}
    topology = detect(node(variables))
    assert (topology.master_addr, topology.master_port, topology.node_rank) == ("a", 29500, 2)


@pytest.mark.parametrize(
    "value",
    ["10.0.0.1:29500", "http://head", "a b", "-o ProxyCommand=x", "$(hostname)", "a,b", "a\nb", "[::1"],
)
def test_an_address_is_one_host_without_a_port(value: str, node: Node, refusal: Refusal) -> None:
    variables = {"MASTER_ADDR": value, "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
    assert "is not a host" in refusal(node(variables)).message


@pytest.mark.parametrize("value", ["0", "65536", "auto", "29500,29501", "-1", "99999999999"])
def test_a_port_is_one_number_below_65536(value: str, node: Node, refusal: Refusal) -> None:
    variables = {"MASTER_ADDR": "a", "MASTER_PORT": value, "WORLD_SIZE": "2", "RANK": "1"}
    assert "is not a port: expected 1–65535" in refusal(node(variables)).message


def test_a_count_beyond_any_cluster_is_refused(node: Node, refusal: Refusal) -> None:
    variables = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "999999999", "RANK": "0"}
    assert "at most 100000" in refusal(node(variables)).message


@pytest.mark.parametrize("value", ["many", "-1", "2²", "9" * 5000])
def test_a_restart_count_that_is_no_number_is_left_out(value: str, node: Node) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_NODELIST": "n1"}
    assert detect(node(variables, SLURM_RESTART_COUNT=value)).restart_count is None


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/mem", "/", "/no\x01such"])
def test_a_node_file_that_is_no_plain_file_is_refused(path: str, refusal: Refusal) -> None:
    environment = Environment({"PBS_JOBID": "1.x", "PBS_NODEFILE": path}, hostname="n1")
    assert "cannot be read" in refusal(environment).message
