"""Frozen dataclasses that are cheap to define: ``@dataclass(frozen=True)``, as in the standard library.

For each class, ``dataclasses`` generates and compiles six methods. For the classes that a launch imports,
this took a third of the time until it could start the processes. Here all classes share their methods.
Creating an instance takes two microseconds longer, so classes with
thousands of instances use ``dataclasses``.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError
from dataclasses import dataclass as with_fields
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen):
        """Return a decorator that makes a class a frozen dataclass."""
        assert frozen
        return _frozen


def _frozen(cls: type) -> type:
    with_fields(init=False, repr=False, eq=False)(cls)
    for name, method in _METHODS.items():
        if name not in vars(cls):
            setattr(cls, name, method)
    return cls


def _init(self: Any, /, *given: object, **named: object) -> None:
    """Set the fields, in order: from the arguments by position or name, or from their defaults."""
    names = self.__match_args__
    if len(given) > len(names):
        raise TypeError(f"{type(self).__name__} takes {len(names)} arguments, not {len(given)}")
    values = dict(zip(names, given, strict=False))
    if twice := values.keys() & named.keys():
        raise TypeError(f"{type(self).__name__}: more than one value for {', '.join(sorted(twice))}")
    values.update(named)
    for name in names:
        if name in values:
            value = values.pop(name)
        else:
            field = self.__dataclass_fields__[name]
            value = field.default if field.default_factory is MISSING else field.default_factory()
            if value is MISSING:
                raise TypeError(f"{type(self).__name__} needs a value for {name}")
        object.__setattr__(self, name, value)
    if values:
        raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def _values(self: Any) -> tuple[object, ...]:
    return tuple([getattr(self, name) for name in self.__match_args__])


def _repr(self: Any) -> str:
    shown = (f"{name}={value!r}" for name, value in zip(self.__match_args__, _values(self), strict=True))
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(_self: Any, name: str, *_value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r}")


_METHODS = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
}
