"""Frozen dataclasses that are cheap to define: ``@dataclass(frozen=True)``, as in the standard library.

For each class, ``dataclasses`` generates and compiles six methods. For the classes that a launch imports,
this took a third of the time until it could start the processes. Here all classes share their methods.
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


def _init(self: Any, /, *given: object, **values: object) -> None:
    """Set the fields: from the arguments by position or name, or from their defaults."""
    names, fields = self.__match_args__, self.__dataclass_fields__
    if given:
        if len(given) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} values, not {len(given)}")
        for name, value in zip(names, given, strict=False):
            if name in values:
                raise TypeError(f"{type(self).__name__} got two values for {name}")
            values[name] = value
    if values.keys() != fields.keys():
        for name in names:
            if name not in values:
                default, factory = fields[name].default, fields[name].default_factory
                values[name] = default if factory is MISSING else factory()
                if values[name] is MISSING:
                    raise TypeError(f"{type(self).__name__} needs a value for {name}")
        if len(values) > len(names):
            unknown = ", ".join(values.keys() - set(names))
            raise TypeError(f"{type(self).__name__} has no field {unknown}")
    vars(self).update(values)
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
