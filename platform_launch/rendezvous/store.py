"""torch's TCPStore, which node 0 serves and every node connects to. The only module that opens one.

TCPStore waits for ever in several places: for the first answer of whatever took its connection, for an answer
on a link that was cut, for a key that is not there. So its calls run in a thread of their own, and the caller
stops waiting for one after a limit; the store is given up then, and the thread stays behind. A value is
replaced as a whole, and there is no counter: to add to a key that somebody has filled with rubbish makes
TCPStore drop the connection.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from platform_launch.errors import InstallationError
from platform_launch.hardware import ports, running
from platform_launch.rendezvous.bare_torch import bare_torch
from platform_launch.rendezvous.liveness import SilenceClock
from platform_launch.rendezvous.torch_free import TorchFreeClient
from platform_launch.text import Phrase

T = TypeVar("T")

# TCPStore itself waits for a key that vanished between two questions for this long.
_KEY_LIMIT_S = 2.0
_LOOK_S = 0.5
# Fits into 576 bytes, which pass everywhere (RFC 791): so the nodes meet where a switch drops large packets.
_SEGMENT_BYTES = 536
_FOR_EVER_S = 365 * 24 * 3600.0


class StoreError(Exception):
    """The store cannot be used, or not any more."""


class StoreSilentError(StoreError):
    """No answer came within the limit. ``silent_s`` is how long that was."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(Phrase("no answer within {silent:.0f} s", silent=silent_s))
        self.silent_s = silent_s


class PortTakenError(StoreError):
    """A store cannot be served on a port; the message says why not, and who holds it."""

    hint = (
        "end that process, or set INIT_MASTER_PORT to a free port on all nodes; "
        "if it is another job's, give this one another MASTER_PORT too"
    )

    def __init__(self, port: int) -> None:
        super().__init__(Phrase("INIT_MASTER_PORT {port} {why}", port=port, why=why_taken(port)))


def why_taken(port: int) -> str:
    """Say why a port of this machine cannot be used, and who holds it."""
    found = ports.probe(port)
    return Phrase(
        "cannot be used: {problem}; it is held by {holders}",
        problem=found.problem or "refused",
        holders=found.held_by(),
    )


def load_torch(*, bare: bool = False) -> Any:
    """Import torch, of it only TCPStore where ``bare`` and this torch allow it.

    ``bare`` is for a process that imports torch for nothing else. Raises InstallationError where this
    interpreter has no torch that works.
    """
    try:
        if bare and "torch" not in sys.modules:
            with suppress(Exception):  # then all of it, which may say better what is wrong
                return bare_torch()
        import torch.distributed
    except Exception as error:  # a broken installation fails in as many ways as it has parts
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InstallationError(
            Phrase(
                "the rendezvous needs torch in this interpreter, {python}: {reason}",
                python=sys.executable,
                reason=reason,
            ),
            "install torch there, or pass --no-roll-call to start without waiting for the other nodes",
        ) from error
    return torch


class Store:
    """Values by key, on node 0. Methods raise StoreError; none waits longer than ``limit_s``."""

    def __init__(self, opening: Callable[[], Any], limit_s: float, open_limit_s: float) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[tuple[bool, Any]]] | None]
        self._calls = SimpleQueue()
        self._limit_s = open_limit_s
        self._broken: StoreError | None = None
        Thread(target=self._work, name="store", daemon=True).start()
        try:
            self._store = self._do(opening)
        except StoreError:
            self.close()
            raise
        self._limit_s = limit_s

    @classmethod
    def serve(cls, port: int, *, limit_s: float) -> Store:
        """Serve a store on all addresses of this machine; port 0 takes one that is free.

        Raises PortTakenError.
        """
        load_torch()  # before the clock runs: it takes seconds
        running.allow_many()  # each node has a connection
        try:
            store = cls(_opening("127.0.0.1", port, serving=True), limit_s, max(limit_s, 60.0))
        except StoreError as error:
            raise PortTakenError(port) from error
        ports.limit_segments(store.port, _SEGMENT_BYTES)
        return store

    @classmethod
    def connect(cls, address: str, port: int, *, limit_s: float, open_limit_s: float | None = None) -> Store:
        """Connect to a store that is served somewhere."""
        load_torch()
        opening = _opening(address, port, serving=False, limit_s=open_limit_s or limit_s)
        return cls(opening, limit_s, open_limit_s or limit_s)

    @classmethod
    def connect_without_torch(
        cls, address: str, port: int, *, limit_s: float, open_limit_s: float | None = None
    ) -> Store:
        """Connect as :meth:`connect` does, where this interpreter may have no torch that works."""
        open_limit_s = open_limit_s or limit_s
        return cls(lambda: TorchFreeClient(address, port, open_limit_s), limit_s, open_limit_s)

    @property
    def port(self) -> int:
        """The port it is served on."""
        return int(self._store.port)

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of some keys, None for one that is not there."""
        return self._do(lambda: self._read(list(keys))) if keys else []

    def write(self, key: str, value: bytes) -> None:
        """Set a key to a value."""
        self._do(lambda: self._store.set(key, value.decode("ascii")))

    def exchange(self, key: str, value: bytes, keys: Sequence[str]) -> list[bytes | None]:
        """Set a key and return the values of others, as one call: on a busy machine each call waits twice."""

        def work() -> list[bytes | None]:
            self._store.set(key, value.decode("ascii"))
            return self._read(list(keys))

        return self._do(work)

    def write_all(self, values: Sequence[tuple[str, bytes]]) -> None:
        """Set several keys, one after the other."""

        def work() -> None:
            for key, value in values:
                self._store.set(key, value.decode("ascii"))

        self._do(work)

    def replace(self, key: str, expected: bytes, value: bytes) -> bytes:
        """Set a key if it has the expected value (empty: or is not there); return what it holds then."""
        wanted, new = expected.decode("latin-1"), value.decode("ascii")
        return bytes(self._do(lambda: self._store.compare_set(key, wanted, new)))

    def delete(self, keys: Sequence[str]) -> None:
        """Remove keys, where they are there."""

        def work() -> None:
            for key in keys:
                self._store.delete_key(key)

        self._do(work)

    def close(self) -> None:
        """Let the thread end; a store that is served lives as long as this object."""
        self._broken = self._broken or StoreError("the store was closed")
        self._calls.put(None)

    def _read(self, keys: list[str]) -> list[bytes | None]:
        if self._store.check(keys):
            with suppress(*_vanished()):  # somebody took a key away in between
                return list(self._store.multi_get(keys))
        elif len(keys) == 1:
            return [None]
        found: list[bytes | None] = []
        for key in keys:
            value = None
            if self._store.check([key]):
                with suppress(*_vanished()):
                    value = self._store.get(key)
            found.append(value)
        return found

    def _do(self, call: Callable[[], T]) -> T:
        if self._broken is not None:
            raise self._broken
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._calls.put((call, answer))
        waiting = SilenceClock(time.monotonic())
        while True:
            try:
                good, value = answer.get(timeout=min(_LOOK_S, self._limit_s))
                break
            except Empty:
                if waiting.observe(time.monotonic()) >= self._limit_s:
                    self._broken = StoreSilentError(waiting.silent_s)
                    self._calls.put(None)
                    raise self._broken from None
        if good:
            return value  # type: ignore[no-any-return]
        # torch.distributed.DistError, or what a client without torch meets: the connection is gone
        if isinstance(value, (RuntimeError, OSError)):
            self._broken = StoreError(str(value).partition("\n")[0])
            raise self._broken from value
        raise value

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, answer = item
            try:
                answer.put((True, call()))
            except BaseException as error:
                answer.put((False, error))


def _opening(address: str, port: int, *, serving: bool, limit_s: float = _FOR_EVER_S) -> Callable[[], Any]:
    def open_store() -> Any:
        torch = load_torch()
        store = torch.distributed.TCPStore(
            address,
            port,
            None,
            serving,
            timedelta(seconds=min(limit_s, 60.0)),
            wait_for_workers=False,
        )
        store.set_timeout(timedelta(seconds=_KEY_LIMIT_S))
        return store

    return open_store


def _vanished() -> tuple[type[Exception], ...]:
    """Return what TCPStore raises when it waited for a key in vain; before torch 2.2 it has no name."""
    kind = getattr(sys.modules.get("torch.distributed"), "DistStoreError", None)
    return (kind,) if kind else ()
