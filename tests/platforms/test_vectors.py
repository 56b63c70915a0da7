"""Every dialect against example environments: node 0, other nodes, other roles, several dialects at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.platforms import PLATFORMS, detect
from platform_launch.platforms.ports import port_of_job

Vector = dict[str, Any]
Of = Callable[[Vector], Environment]

FOLDER = Path(__file__).parent
# The files that vectors.json leaves to the test.
FILES_OF_VECTORS = {
    "/var/spool/pbs/aux/314827.server1": "hostA\n" * 8 + "hostB\n" * 8,
    "/run/determined/info/rendezvous.json": '{"container_addrs":["10.0.0.1","10.0.0.2"],"container_rank":1}',
}
NAMES = {"nproc": "nproc_per_node", "restart": "restart_count", "world": "world_size"}
PLACE = ("nnodes", "node_rank", "master_addr")
WORDS = ("error", "note", "level")


def load(file: str) -> list[Vector]:
    vectors: list[Vector] = json.loads((FOLDER / file).read_text(encoding="utf-8"))["vectors"]
    if file == "vectors.json":
        for vector in vectors:
            if vector["dialect"] in ("pbs", "determined"):
                vector["files"] = FILES_OF_VECTORS
    return vectors


VECTORS = load("vectors.json") + load("more_vectors.json")
DIALECTS = sorted({vector["dialect"] for vector in VECTORS})


@pytest.fixture
def of(node: Callable[..., Environment], tmp_path: Path) -> Of:
    """The environment of a vector, without the files of the one before."""

    def environment(vector: Vector) -> Environment:
        for left in tmp_path.iterdir():
            shutil.rmtree(left)
        return node(vector["env"], vector.get("files"))

    return environment


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


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_platforms_variables_are_read_as_documented(dialect: str, of: Of) -> None:
    for vector in (vector for vector in VECTORS if vector["dialect"] == dialect):
        expect: Vector = vector["expect"]
        try:
            reading = detect(of(vector)).as_dict()
            refused = False
        except TopologyError as error:
            reading, refused = error.reading, bool(error.hint)
        expected = {
            "refused": is_refused(expect),
            "platform": dialect,
            "level": expect.get("level", "node"),
            **{name: expected_value(name, value) for name, value in expect.items() if name not in WORDS},
        }
        read = {name: reading[NAMES.get(name, name)] for name in expected.keys() - {"refused"}}
        assert {"refused": refused, **read} == expected, vector["name"]


def test_a_refusal_names_what_is_wrong(of: Of) -> None:
    for vector in load("more_vectors.json"):
        if "error" in vector["expect"]:
            with pytest.raises(TopologyError) as caught:
                pytest.fail(f"{vector['name']}: {detect(of(vector))}")
            assert vector["expect"]["error"] in caught.value.message, vector["name"]


def test_every_field_says_where_it_came_from(of: Of) -> None:
    for vector in VECTORS:
        if not is_refused(vector["expect"]):
            sources = detect(of(vector)).sources
            assert {"nnodes", "node_rank", "master_addr", "master_port"} <= sources.keys(), vector["name"]
            assert all(sources.values()), vector["name"]


def test_every_platform_has_a_vector() -> None:
    assert {dialect.name for dialect in PLATFORMS} <= {vector["dialect"] for vector in VECTORS}


def test_every_platform_that_can_be_launched_has_a_vector_of_node_0_and_of_another_node() -> None:
    never = {"mpijob", "torchx", "ray", "modal", "torchrun"}
    for name in {dialect.name for dialect in PLATFORMS} - never:
        ranks = {vector["expect"].get("node_rank") for vector in VECTORS if vector["dialect"] == name}
        assert 0 in ranks, name
        assert ranks - {0, None}, name
