"""Our frozen dataclasses: all that is said here holds of the standard library's too."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from platform_launch.dataclass import dataclass


@pytest.fixture(params=[dataclass, dataclasses.dataclass], ids=["ours", "the library's"])
def node(request: pytest.FixtureRequest) -> Any:
    """A class that inherits fields, checks them and has a keyword."""
    frozen: Callable[[type], type] = request.param(frozen=True)

    @frozen
    class Place:
        rank: int
        names: list[str] = field(default_factory=list, compare=False)
        host: str = field(default="here", repr=False)

    @frozen
    class Node(Place):
        port: int = field(default=29500, kw_only=True)

        def __post_init__(self) -> None:
            if self.rank < 0:
                raise ValueError("below zero")

    return Node


def test_values_are_taken_checked_and_shown(node: Any) -> None:
    one = node(1, port=7)
    assert repr(one).rpartition(".")[2] == "Node(rank=1, names=[], port=7)"
    assert dataclasses.asdict(one) == {"rank": 1, "names": [], "host": "here", "port": 7}
    assert dataclasses.replace(one, rank=2) == node(2, port=7)
    assert copy.deepcopy(one) == one
    with pytest.raises(ValueError, match="below zero"):
        dataclasses.replace(one, rank=-1)
    too_many: list[Any] = [1, [], "here", 7]
    for arguments in ([], too_many):
        with pytest.raises(TypeError):
            node(*arguments)


def test_every_object_has_a_list_of_its_own(node: Any) -> None:
    node(1).names.append("gn7")
    assert node(1).names == []


def test_equal_are_those_of_one_class_with_equal_values(node: Any) -> None:
    assert node(1, ["gn7"]) == node(1)
    assert hash(node(1, ["gn7"])) == hash(node(1))
    assert node(1) != node(2)
    assert node.__mro__[1](1) != node(1)
    assert node(1) != 1


def test_nothing_is_changed_afterwards(node: Any) -> None:
    one = node(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.rank = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.rank
    assert one.rank == 1


def test_its_signature_is_known(node: Any) -> None:
    parameters = inspect.signature(node).parameters
    assert list(parameters) == ["rank", "names", "host", "port"]
    assert (parameters["port"].default, parameters["port"].annotation) == (29500, "int")
