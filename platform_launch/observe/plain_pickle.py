"""Reads pickles of plain data only: a pickle may otherwise run any code."""

from __future__ import annotations

import io
import pickle

from platform_launch.errors import InputError
from platform_launch.text import Phrase


def load(data: bytes) -> object:
    """Return dictionaries, lists, text and numbers. Raises InputError, also where a class is named."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except Exception as error:  # a broken pickle raises nearly anything
        raise InputError(
            Phrase("it is no whole pickle: {kind}: {problem}", kind=type(error).__name__, problem=error)
        ) from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise InputError(
            Phrase(
                "it names {module}.{name}: expected plain dictionaries and lists", module=module, name=name
            )
        )
