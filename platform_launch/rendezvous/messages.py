"""What travels between nodes: frozen dataclasses, checked when read.

A message travels as JSON, ``[name of its class, {field: value}]``. The sender
may be a stranger: :func:`decode` accepts only messages of the expected class, fields, types and size, and
raises :class:`InvalidMessageError` for everything else. It removes control characters from texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from platform_launch.sentences import Sentence
from platform_launch.text import Phrase, escaped
from platform_launch.values import dataclass

MIB = 2**20
_LARGEST_INTEGER = 2**63
_SHOWN = 80
# Levels of JSON: a sentence inside another needs two.
_DEEPEST = 24


class InvalidMessageError(ValueError):
    """What was read is not a message that belongs here; the text states what was expected."""


class Message:
    """Base of all messages. Its subclasses are frozen dataclasses and known on the wire by their names.

    ``most_bytes`` is how long one may be; a longer one is refused before it is parsed.
    """

    most_bytes: ClassVar[int] = 64 * 1024
    kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__name__ in Message.kinds:
            raise TypeError(f"two messages are called {cls.__name__}")
        Message.kinds[cls.__name__] = cls


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """Return the form that travels: one line of ASCII, without its end."""
    return json.dumps(_plain(message), ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()


def decode(data: bytes, expected: type[M], *, most_bytes: int | None = None) -> M:
    """Read :func:`encode` back as ``expected`` or a subclass of it. Raises InvalidMessageError.

    ``most_bytes`` replaces the classes' own limits.
    """
    limit = _limit(expected) if most_bytes is None else most_bytes
    if len(data) > limit:
        raise InvalidMessageError(
            f"expected a {expected.__name__} of at most {limit} bytes, found {len(data)}"
        )
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError(f"expected a {expected.__name__}, found {data[:_SHOWN]!r}") from error
    message: M = _message(expected)(value, expected.__name__)
    if most_bytes is None and len(data) > message.most_bytes:
        raise InvalidMessageError(
            f"expected a {type(message).__name__} of at most {message.most_bytes} bytes, found {len(data)}"
        )
    return message


def _limit(expected: type[Message]) -> int:
    """Return the most bytes of a class and of those that may stand for it."""
    return max([expected.most_bytes, *(_limit(child) for child in expected.__subclasses__())])


def _plain(value: Any) -> Any:
    """Return what JSON knows. A message inside a message keeps its name; another dataclass needs none."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (Sentence, Phrase)):
        return value.document()
    if is_dataclass(value) and not isinstance(value, type):
        content = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return [type(value).__name__, content] if isinstance(value, Message) else content
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


_Reader = Callable[[Any, str], Any]


@cache
def _reader(hint: Any) -> _Reader:
    """Return the function that checks a value against a type and returns it as that type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [argument for argument in arguments if argument is not NoneType]
        if len(kinds) != 1 or len(kinds) == len(arguments):
            raise TypeError(f"a message cannot have a field of type {hint}")
        return _optional(_reader(kinds[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping) and arguments[0] in (str, int):
        return _mapping(arguments[0], _reader(arguments[1]))
    if isinstance(hint, type):
        if issubclass(hint, Message):
            return _message(hint)
        if hint is Sentence:
            return _sentence
        if is_dataclass(hint):
            return _record(hint)
        if issubclass(hint, Enum):
            return _member(hint)
        if hint in _SCALARS:
            return _SCALARS[hint]
    raise TypeError(f"a message cannot have a field of type {hint}")


def _text(value: Any, where: str) -> str:
    """Read a text, which may be a phrase with its values."""
    if isinstance(value, dict):
        try:
            return Phrase.read(value)
        except ValueError as error:
            raise InvalidMessageError(f"{where}: {escaped(str(error))}") from error
    if not isinstance(value, str):
        raise _mismatch(where, "a text", value)
    return escaped(value)


def _truth(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(where, "true or false", value)
    return value


def _integer(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _LARGEST_INTEGER:
        raise _mismatch(where, Phrase("a whole number"), value)
    return value


def _number(value: Any, where: str) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not usable or abs(value) >= _LARGEST_INTEGER or not math.isfinite(value):
        raise _mismatch(where, Phrase("a number"), value)
    return float(value)


def _sentence(value: Any, where: str) -> Sentence:
    try:
        return Sentence.read(_harmless_texts(value, _DEEPEST))
    except ValueError as error:
        raise InvalidMessageError(f"{where}: {error}") from error


def _harmless_texts(value: Any, deepest: int) -> Any:
    if deepest == 0:
        raise ValueError(f"a sentence in sentences more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return {escaped(name): _harmless_texts(one, deepest - 1) for name, one in value.items()}
    if isinstance(value, list):
        return [_harmless_texts(one, deepest - 1) for one in value]
    return escaped(value) if isinstance(value, str) else value


_SCALARS: dict[type, _Reader] = {str: _text, bool: _truth, int: _integer, float: _number}


def _optional(reader: _Reader) -> _Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _sequence(reader: _Reader) -> _Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _mismatch(where, Phrase("a list"), value)
        return tuple(reader(item, where) for item in value)

    return read


def _mapping(key_kind: type, reader: _Reader) -> _Reader:
    def read(value: Any, where: str) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _mismatch(where, "an object", value)
        return {key(name): reader(item, where) for name, item in value.items()}

    def key(name: str) -> str | int:
        if key_kind is str:
            return escaped(name)
        if not name.lstrip("-").isdecimal() or len(name) > 19:
            raise InvalidMessageError(f"expected whole numbers as names, found {name[:_SHOWN]!r}")
        return int(name)

    return read


def _member(kind: type[Enum]) -> _Reader:
    known = {member.value: member for member in kind}

    def read(value: Any, where: str) -> Enum:
        if not isinstance(value, str) or value not in known:
            raise _mismatch(where, f"one of {', '.join(known)}", value)
        return known[value]

    return read


def _record(kind: type) -> _Reader:
    """Return the reader of a dataclass, whose fields are all there, or have a default, and no others."""
    known: dict[str, _Reader] = {}
    required: set[str] = set()

    def read(value: Any, where: str) -> Any:
        if not known:  # a class that refers to itself is read only when it is needed
            hints = get_type_hints(kind)
            for field in fields(kind):
                known[field.name] = _reader(hints[field.name])
                if field.default is MISSING and field.default_factory is MISSING:
                    required.add(field.name)
        if not isinstance(value, dict):
            raise _mismatch(where, "an object", value)
        if value.keys() - known.keys() or required - value.keys():
            expected, found = ", ".join(known), ", ".join(sorted(value))
            raise InvalidMessageError(
                f"{where}: expected the fields {expected}, found {escaped(found)[:_SHOWN]}"
            )
        content = {name: known[name](item, f"{where}.{name}") for name, item in value.items()}
        try:
            return kind(**content)
        except InvalidMessageError:
            raise
        except ValueError as error:  # from a class that checks its values
            raise InvalidMessageError(f"{where}: {escaped(str(error))}") from error

    return read


_contents: dict[str, _Reader] = {}


def _message(expected: type[Message]) -> _Reader:
    def read(value: Any, where: str) -> Any:
        name = value[0] if isinstance(value, list) and len(value) == 2 else None
        kind = Message.kinds.get(name) if isinstance(name, str) else None
        if kind is None or not issubclass(kind, expected):
            raise _mismatch(where, f"a {expected.__name__}", value)
        content = _contents.get(kind.__name__) or _contents.setdefault(kind.__name__, _record(kind))
        return content(value[1], kind.__name__)

    return read


def _mismatch(where: str, expected: str, found: Any) -> InvalidMessageError:
    return InvalidMessageError(f"{where}: expected {expected}, found {escaped(repr(found)[:_SHOWN])}")


@dataclass(frozen=True)
class ConsoleLine(Message):
    """A line for the user: ``level`` as the console knows it, ``event`` the id of what happened."""

    level: str
    text: str
    event: str = ""
