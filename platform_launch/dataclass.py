"""``dataclasses.dataclass``, which makes frozen classes in a quarter of the time.

The standard library writes and compiles six methods for each class: a fifth of what a launch costs before its
training starts, and a quarter of what its helper does. Here only ``__init__`` is compiled; the others are the
same for all classes. ``InitVar`` and ``field(init=False)`` are not for them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, **options):
        """Make a class a dataclass; with other options than ``frozen`` as the standard library does."""
        if frozen and not options:
            return _frozen if cls is None else _frozen(cls)
        return dataclasses.dataclass(cls, frozen=frozen, **options)


def _frozen(cls: type) -> type:
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    methods = {
        "__init__": _init(cls),
        "__repr__": _repr,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        **_comparison([field.name for field in dataclasses.fields(cls) if field.compare]),
    }
    for name, method in methods.items():
        if vars(cls).get(name) is None:  # Python sets __hash__ to None beside an __eq__ of the class's own
            setattr(cls, name, method)
    return cls


def _init(cls: type) -> object:
    """Compile ``__init__``, in the class's module: its annotations use the names there."""
    known: dict[str, object] = {"_set": object.__setattr__, "_left_out": object()}
    positional, keywords, lines = ["self"], ["*"], ["pass"]
    for field in dataclasses.fields(cls):
        name = parameter = value = field.name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_left_out"
            value = f"_make_{name}() if {name} is _left_out else {name}"
        (keywords if field.kw_only else positional).append(parameter)
        lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(positional + keywords if keywords[1:] else positional)
    body = "\n  ".join(lines)
    text = f"def make({', '.join(known)}):\n def __init__({parameters}):\n  {body}\n return __init__"
    made: dict[str, Any] = {}
    exec(text, vars(sys.modules[cls.__module__]), made)  # noqa: S102 - as the standard library does
    init = made["make"](*known.values())
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls)}
    return init


def _comparison(names: Sequence[str]) -> dict[str, object]:
    values = attrgetter("__class__", *names)

    def equal(self: object, other: object) -> bool:
        return bool(values(self) == values(other)) if type(other) is type(self) else NotImplemented

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": hashed}


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    )
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(_self: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"{name} stays as it is")
