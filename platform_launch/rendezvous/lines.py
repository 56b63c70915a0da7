"""Sealed lines: how messages travel over one connection.

A line is a signature, a space and the message as JSON. With a secret, the signature is an HMAC-SHA256 over
the number of the line in its direction and the message, under a key that is derived from the secret, the role
of the sender and the Hello and Welcome of this connection, both of which hold a fresh nonce. So no line can
be forged, changed, left out, repeated, or shown again on another connection. Without a secret the signature
is ``-``.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import replace

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.messages import InvalidMessageError, M, Message, decode, encode
from platform_launch.rendezvous.protocol import (
    ENVELOPE_BYTES,
    SEALED_LINES,
    Answered,
    Ask,
    Fetched,
    Hello,
    OpenRequest,
    Publish,
    RequestAnswer,
    Welcome,
)
from platform_launch.rendezvous.purpose import Purpose

_CHUNK_BYTES = 64 * 1024
_NO_SIGNATURE = b"-"
_LABEL = b"platform_launch rendezvous 1"
_NODE, _COORDINATOR = b"node", b"coordinator"
# Digits of a signature and the blank.
SIGNATURE_BYTES = 65


class UnauthenticatedError(InvalidMessageError):
    """A line whose signature is missing or wrong. ``sealed``: it has one."""

    def __init__(self, *, sealed: bool) -> None:
        super().__init__("another secret" if sealed else "no secret")
        self.sealed = sealed


class Seal:
    """Signs the lines of one side and checks those of the other. One thread uses it."""

    def __init__(self, secret: Secret | None, hello: bytes, welcome: Welcome, *, node: bool) -> None:
        self._keys: tuple[bytes, bytes] | None = None
        self._sent = self._received = 0
        transcript = (
            hashlib.sha256(hello).digest() + hashlib.sha256(encode(replace(welcome, proof=""))).digest()
        )
        self.proof = ""
        if secret is not None:
            roles = (_NODE, _COORDINATOR) if node else (_COORDINATOR, _NODE)
            mine, theirs = (secret.sign(b"\0".join((_LABEL, role, transcript))) for role in roles)
            self._keys = mine, theirs
            self.proof = secret.sign(b"\0".join((_LABEL, b"proof", transcript))).decode()

    def close(self, data: bytes) -> bytes:
        """Return the line that carries an encoded message."""
        signature = _NO_SIGNATURE
        if self._keys is not None:
            signature = _sign(self._keys[0], self._sent, data)
            self._sent += 1
        return signature + b" " + data + b"\n"

    def open(self, line: bytes) -> bytes:
        """Return the encoded message of a line. Raises UnauthenticatedError."""
        signature, _, data = line.partition(b" ")
        if self._keys is not None:
            if not hmac.compare_digest(signature, _sign(self._keys[1], self._received, data)):
                raise UnauthenticatedError(sealed=signature != _NO_SIGNATURE)
            self._received += 1
        return data


def _sign(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.new(key, number.to_bytes(8, "big") + data, "sha256").hexdigest().encode()


class LineReader:
    """Reads lines of bounded length from a stream, which buffers little itself."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._held = bytearray()
        self._searched = 0

    async def line(self, most_bytes: int, first: bytes = b"") -> bytes:
        """Return the next line without its end; b"" at the end of the stream.

        Raises InvalidMessageError for a line that is longer, or that does not begin with ``first``.
        """
        while True:
            end = self._held.find(b"\n", self._searched)
            if (end < 0 and len(self._held) > most_bytes) or end > most_bytes:
                raise InvalidMessageError(f"expected at most {most_bytes} bytes in a line")
            if not first.startswith(self._held[: len(first)]):
                raise InvalidMessageError("expected a launcher")
            if end >= 0:
                line = bytes(self._held[:end])
                del self._held[: end + 1]
                self._searched = 0
                return line
            self._searched = len(self._held)
            data = await self._stream.read(_CHUNK_BYTES)
            if not data:
                return b""
            self._held += data


def read_line(data: bytes, purpose: Purpose, expected: type[M]) -> M:
    """Read an opened line that may travel for this purpose. Raises InvalidMessageError."""
    message = decode(data, expected, most_bytes=longest(purpose))
    if not isinstance(message, SEALED_LINES):
        raise InvalidMessageError(f"{type(message).__name__} is no line")
    for body in bodies_of(message):
        if type(body) not in purpose.messages:
            raise InvalidMessageError(f"{type(body).__name__} is not a message of purpose {purpose.name!r}")
        if not isinstance(message, Fetched) and len(data) > body.most_bytes + ENVELOPE_BYTES:
            raise InvalidMessageError(
                f"expected a {type(body).__name__} of at most {body.most_bytes} bytes, found {len(data)}"
            )
    return message


def bodies_of(message: Message) -> tuple[Message, ...]:
    """Return the purpose's own messages within a line."""
    if isinstance(message, (Publish, Ask, RequestAnswer, OpenRequest, Answered)):
        return (message.body,)
    return tuple(message.values.values()) if isinstance(message, Fetched) else ()


def longest(purpose: Purpose) -> int:
    """Return how many bytes a line of a member may have, less its signature."""
    return max((kind.most_bytes for kind in purpose.messages), default=Message.most_bytes) + ENVELOPE_BYTES


__all__ = ["Hello", "LineReader", "Seal", "UnauthenticatedError", "bodies_of", "longest", "read_line"]
