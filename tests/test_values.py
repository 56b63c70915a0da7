"""The cheap dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from platform_launch import values

Decorator = Callable[..., Callable[[type], type]]


def defined(dataclass: Decorator) -> tuple[Any, Any]:
    """A class, and one that inherits from it."""

    @dataclass(frozen=True)
    class Place:
        """A place."""

        most: ClassVar[int] = 3
        name: str
        rank: int = 0
        hosts: list[str] = field(default_factory=list)

        @property
        def shown(self) -> str:
            return f"{self.name} {self.rank}"

    @dataclass(frozen=True)
    class Checked(Place):
        """A place with a rank that is checked."""

        least: int = 0

        def __post_init__(self) -> None:
            if self.rank < self.least:
                raise ValueError(self.rank)

        def __repr__(self) -> str:
            return "checked"

    return Place, Checked


@pytest.fixture(params=[dataclasses.dataclass, values.dataclass], ids=["theirs", "ours"])
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return defined(request.param)


def test_instances_are_values(both: tuple[Any, Any]) -> None:
    place, checked = both
    one = place("gn1", hosts=["a"])
    assert (one.name, one.rank, one.hosts, one.shown) == ("gn1", 0, ["a"], "gn1 0")
    assert repr(one).endswith("Place(name='gn1', rank=0, hosts=['a'])")
    assert one == place("gn1", 0, ["a"])
    assert one != place("gn1", 1, ["a"])
    assert one != ("gn1", 0, ["a"])
    assert place("gn1").hosts is not place("gn1").hosts
    assert {place("gn1", hosts=()): 1}[place("gn1", 0, ())] == 1
    assert dataclasses.replace(one, rank=2) == place("gn1", 2, ["a"])
    assert dataclasses.asdict(one) == {"name": "gn1", "rank": 0, "hosts": ["a"]}
    assert [one.name for one in dataclasses.fields(place)] == ["name", "rank", "hosts"]
    assert copy.deepcopy(one) == one
    match one:
        case place(name, rank):
            assert (name, rank) == ("gn1", 0)
    assert (checked("gn1", 2, least=1).least, repr(checked("gn1"))) == (1, "checked")
    assert checked("gn1") != place("gn1")
    with pytest.raises(ValueError, match="2"):
        checked("gn1", 2, least=3)


def test_instances_do_not_change(both: tuple[Any, Any]) -> None:
    one = both[0]("gn1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.rank = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.rank


@pytest.mark.parametrize(
    ("given", "named"),
    [((), {}), (("a", 1, [], 2), {}), (("a",), {"name": "b"}), (("a",), {"size": 1})],
)
def test_wrong_arguments_are_refused(
    both: tuple[Any, Any], given: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        both[0](*given, **named)


def test_an_instance_can_be_pickled() -> None:
    from platform_launch.topology import Overrides

    one = Overrides(nnodes=2)
    assert pickle.loads(pickle.dumps(one)) == one


def test_defining_a_class_compiles_nothing() -> None:
    code = (
        "import sys; from platform_launch.values import dataclass; compiled = []\n"
        "sys.addaudithook(lambda event, _: compiled.append(event) if event == 'compile' else None)\n"
        "@dataclass(frozen=True)\nclass Place:\n    'A place.'\n    name: str = ''\n"
        "sys.exit(len(compiled))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
