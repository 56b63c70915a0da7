"""Reads pickles of plain data only: a pickle may otherwise run any code, or never end."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

from platform_launch.errors import InputError
from platform_launch.text import Phrase


def load(data: bytes) -> object:
    """Return dictionaries, lists, text and numbers. Raises InputError, also if a class is named.

    Values may share others, so the full text of a few bytes may be endless.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except Exception as error:  # a broken pickle may raise almost anything
        raise InputError(
            Phrase("it is not a complete pickle: {kind}: {problem}", kind=type(error).__name__, problem=error)
        ) from None


class _PlainUnpickler(pickle._Unpickler):
    """Turns tuples into lists, because a key that is a tuple of shared tuples takes forever to hash.

    A key that is not a plain value becomes None.
    """

    stack: list[object]  # recreated by load()
    pop_mark: Callable[[], list[object]]

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> object:
        raise InputError(
            Phrase(
                "it names {module}.{name}: expected plain dictionaries and lists", module=module, name=name
            )
        )

    def _load_tuple(self) -> None:
        items = self.pop_mark()
        self.stack.append(items)

    def _load_few(self, count: int) -> None:
        self.stack[len(self.stack) - count :] = [self.stack[len(self.stack) - count :]]

    def _load_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def _set_items(self, items: list[object]) -> None:
        known = self.stack[-1]
        assert isinstance(known, dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            known[key if isinstance(key, str | int | float | bytes | None) else None] = value

    dispatch[pickle.SETITEM[0]] = _load_item
    dispatch[pickle.SETITEMS[0]] = lambda self: self._set_items(self.pop_mark())
    dispatch[pickle.TUPLE[0]] = _load_tuple
    dispatch[pickle.EMPTY_TUPLE[0]] = lambda self: self._load_few(0)
    dispatch[pickle.TUPLE1[0]] = lambda self: self._load_few(1)
    dispatch[pickle.TUPLE2[0]] = lambda self: self._load_few(2)
    dispatch[pickle.TUPLE3[0]] = lambda self: self._load_few(3)
