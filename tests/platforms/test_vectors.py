"""Every dialect against example environments: node 0, other nodes, other roles, several dialects at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.platforms import PLATFORMS, detect
from platform_launch.platforms.ports import port_of_job

Vector = dict[str, Any]
Node = Callable[..., Environment]

FOLDER = Path(__file__).parent
# The files that vectors.json leaves to the test.
FILES_OF_VECTORS = {
    "/var/spool/pbs/aux/314827.server1": "hostA\n" * 8 + "hostB\n" * 8,
    "/run/determined/info/rendezvous.json": '{"container_addrs":["10.0.0.1","10.0.0.2"],"container_rank":1}',
}
NAMES = {"nproc": "nproc_per_node", "restart": "restart_count", "world": "world_size"}
PLACE = ("nnodes", "node_rank", "master_addr")


def load(file: str) -> list[Vector]:
    vectors: list[Vector] = json.loads((FOLDER / file).read_text(encoding="utf-8"))["vectors"]
    if file == "vectors.json":
        for vector in vectors:
            if vector["dialect"] in ("pbs", "determined"):
                vector["files"] = FILES_OF_VECTORS
    return vectors


VECTORS = load("vectors.json") + load("more_vectors.json")


def name_of(vector: Vector) -> str:
    return f"{vector['dialect']}: {vector['name']}"


def is_refused(expect: Vector) -> bool:
    unknown = any(name in expect and expect[name] is None for name in PLACE)
    return "error" in expect or expect.get("level") == "process" or unknown


def expected_value(name: str, value: object) -> object:
    """Translate the conventions of vectors.json into the JSON form of a reading."""
    if value == "default":
        return 29500
    if value == "count devices" or (name == "nnodes" and "elastic" in str(value)):
        return None
    if isinstance(value, str) and value.startswith("derived from "):
        return port_of_job(value.removeprefix("derived from "))
    return value


@pytest.mark.parametrize("vector", VECTORS, ids=name_of)
def test_a_platforms_variables_are_read_as_documented(vector: Vector, node: Node) -> None:
    environment = node(vector["env"], vector.get("files"))
    expect: Vector = vector["expect"]
    if is_refused(expect):
        with pytest.raises(TopologyError) as caught:
            detect(environment)
        reading = caught.value.reading
        assert caught.value.hint
    else:
        reading = detect(environment).as_dict()
    assert reading["platform"] == vector["dialect"]
    assert reading["level"] == expect.get("level", "node")
    for name, value in expect.items():
        if name not in ("error", "note", "level"):
            assert (name, reading[NAMES.get(name, name)]) == (name, expected_value(name, value))


@pytest.mark.parametrize(
    "vector", [vector for vector in load("more_vectors.json") if "error" in vector["expect"]], ids=name_of
)
def test_a_refusal_names_what_is_wrong(vector: Vector, node: Node) -> None:
    with pytest.raises(TopologyError) as caught:
        detect(node(vector["env"], vector.get("files")))
    assert vector["expect"]["error"] in caught.value.message


@pytest.mark.parametrize("vector", [v for v in VECTORS if not is_refused(v["expect"])], ids=name_of)
def test_every_field_says_where_it_came_from(vector: Vector, node: Node) -> None:
    topology = detect(node(vector["env"], vector.get("files")))
    assert {"nnodes", "node_rank", "master_addr", "master_port"} <= topology.sources.keys()
    assert all(topology.sources.values())


def test_every_platform_has_a_vector() -> None:
    assert {dialect.name for dialect in PLATFORMS} <= {vector["dialect"] for vector in VECTORS}


def test_every_platform_that_can_be_launched_has_a_vector_of_node_0_and_of_another_node() -> None:
    never = {"mpijob", "torchx", "ray", "modal", "torchrun"}
    for name in {dialect.name for dialect in PLATFORMS} - never:
        ranks = {vector["expect"].get("node_rank") for vector in VECTORS if vector["dialect"] == name}
        assert 0 in ranks, name
        assert ranks - {0, None}, name
