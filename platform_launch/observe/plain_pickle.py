"""Reads pickles of plain data only: a pickle may otherwise run any code."""

from __future__ import annotations

import io
import pickle

from platform_launch.errors import InputError


def load(data: bytes) -> object:
    """Return dictionaries, lists, text and numbers. Raises InputError, also where a class is named."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except Exception as error:  # a broken pickle raises nearly anything
        raise InputError(f"it is no whole pickle: {type(error).__name__}: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise InputError(f"it names {module}.{name}: expected plain dictionaries and lists")
