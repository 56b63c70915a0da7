"""A client of torch's TCPStore without torch: for a node that cannot load it, and has only that to say.

The protocol has no name or version. What is used of it here is the same in torch 2.4 to 2.13, in these files
of ``torch/csrc/distributed/c10d``: ``TCPStoreBackend.hpp`` numbers the questions, to which later releases
only added at the end, and has the magic number that a client sends first; ``TCPStore.hpp`` has the slash
before each key. The two servers, ``TCPStoreBackend.cpp`` and ``TCPStoreLibUvBackend.cpp``, read alike:
numbers in the byte order of the machine, a length of eight bytes before each text and each list.
"""

from __future__ import annotations

import socket
import struct
import weakref
from collections.abc import Sequence
from enum import IntEnum

_MAGIC = 0x3C85F7CE
_READY = 0  # CheckResponseType
# What TCPStore itself takes; who answers may be anybody.
_LARGEST_BYTES = 8 * 2**20


class _Question(IntEnum):
    """QueryType, as far as it is asked here."""

    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    CHECK = 5
    DELETE_KEY = 8
    MULTI_GET = 10


class TorchFreeClient:
    """What ``Store`` needs of a TCPStore, under the same names. Methods raise OSError.

    No single wait for the other side is longer than ``limit_s``. A key that is not there may end the
    connection where it is read; where it is checked it does not.
    """

    def __init__(self, address: str, port: int, limit_s: float) -> None:
        self.port = port
        self._socket = socket.create_connection((address, port), limit_s)
        weakref.finalize(self, self._socket.close)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask(_Question.VALIDATE, struct.pack("=I", _MAGIC))

    def set(self, key: str, value: str) -> None:
        """Set a key, which the other side does not acknowledge."""
        self._ask(_Question.SET, _key(key), _text(value))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Set a key that holds what is expected, or nothing where that is empty; return what it holds."""
        self._ask(_Question.COMPARE_SET, _key(key), _text(expected), _text(value))
        return self._value()

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all of these keys are there."""
        self._ask(_Question.CHECK, _number(len(keys)), *map(_key, keys))
        return self._receive(1)[0] == _READY

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there."""
        self._ask(_Question.GET, _key(key))
        return self._value()

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of keys that are there."""
        self._ask(_Question.MULTI_GET, _number(len(keys)), *map(_key, keys))
        return [self._value() for _ in keys]

    def delete_key(self, key: str) -> bool:
        """Remove a key; tell whether it was there."""
        self._ask(_Question.DELETE_KEY, _key(key))
        return self._receive(8) != bytes(8)

    def _ask(self, question: _Question, *parts: bytes) -> None:
        self._socket.sendall(b"".join((bytes([question]), *parts)))

    def _value(self) -> bytes:
        (length,) = struct.unpack("=Q", self._receive(8))
        if length > _LARGEST_BYTES:
            raise ConnectionError(f"what answers is no TCPStore: it announces {length} bytes")
        return self._receive(length)

    def _receive(self, length: int) -> bytes:
        received = bytearray()
        while len(received) < length:
            part = self._socket.recv(length - len(received))
            if not part:
                raise ConnectionError("the store has ended the connection")
            received += part
        return bytes(received)


def _number(value: int) -> bytes:
    return struct.pack("=Q", value)


def _text(value: str) -> bytes:
    data = value.encode()
    return _number(len(data)) + data


def _key(key: str) -> bytes:
    return _text(f"/{key}")
