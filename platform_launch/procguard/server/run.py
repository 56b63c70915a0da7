"""Runs a server: its socket, uvicorn, and a clean stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from platform_launch.errors import InputError, UsageError
from platform_launch.hardware import running
from platform_launch.procguard.database.engine import DatabaseError
from platform_launch.procguard.server.app import served_app
from platform_launch.procguard.server.assembly import ServerParts
from platform_launch.procguard.server.middleware import HttpConnection
from platform_launch.procguard.server.periodic import PeriodicThread
from platform_launch.procguard.server.settings import ServerSettings
from platform_launch.procguard.server.sign_in import OnlyFromProxies
from platform_launch.text import Phrase

_LOG = logging.getLogger(__name__)
_MANY_FILES = 4096
_WAITING = 4096
_IDLE_S = 75
_END_WITHIN_S = 10


def serve(parts: ServerParts, settings: ServerSettings, ready: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is called with the port once requests are answered.

    A second SIGINT ends it at once. Raises UsageError if it cannot listen on the address, InputError if the
    certificate cannot be used, DatabaseError if another server has taken over.
    """
    stopping = asyncio.Event()
    config = configured(parts, settings, stopping)
    _check_certificate(settings)
    _allow_many_connections()
    with listening(settings) as listener:
        server = _Server(
            config,
            stopping,
            parts.control_loop,
            lambda: ready(listener.getsockname()[1]),
        )
        keep_responsive()
        uvloop.run(server.serve([listener]))
    if parts.control_loop.superseded is not None:
        raise DatabaseError(*parts.control_loop.superseded.phrases)


def configured(parts: ServerParts, settings: ServerSettings, stopping: asyncio.Event) -> uvicorn.Config:
    """Return uvicorn's configuration; ``stopping`` is set at the end (:func:`served_app`)."""
    app = served_app(parts, stopping)
    proxies = settings.trusted_proxies
    if proxies:
        app = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), list(proxies)))
    if settings.sign_in.proxy is not None:  # before the former, which replaces the proxy's address
        app = OnlyFromProxies(app, settings.sign_in.proxy, proxies)
    return uvicorn.Config(
        app,
        http=HttpConnection,
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_WAITING,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_END_WITHIN_S,
        proxy_headers=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which reports when it is ready, ends streams, and does not re-raise signals.

    It also stops when the control loop finds that another server has taken over.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        stopping: asyncio.Event,
        control_loop: PeriodicThread,
        ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._control_loop = control_loop
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called ten times a second."""
        return await super().on_tick(counter) or self._control_loop.superseded is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish pending answers."""
        self._stopping.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving. Unlike uvicorn's own, they are not raised again afterwards."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, self.handle_exit) for one in signals}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


@contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """Open the socket to listen on. Raises UsageError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: an empty label, or one of more than 63 letters
        reason = error.strerror if isinstance(error, OSError) else Phrase("not a host name")
        raise UsageError(
            Phrase("listen={address}: {problem}", address=settings.listen, problem=reason),
            "expected an address of this machine",
        ) from error
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_WAITING)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise UsageError(
                Phrase(
                    "cannot listen on {address}: {problem}", address=settings.listen, problem=error.strerror
                ),
                "if another server uses the port, choose another one with --listen"
                if taken
                else "listen on an address of this machine",
            ) from error
        yield listener


def _check_certificate(settings: ServerSettings) -> None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    files = f"tls_certificate={settings.tls_certificate}, tls_key={settings.tls_key}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ValueError) as error:
        reason = error.strerror if type(error) is FileNotFoundError else str(error)
        raise InputError(
            Phrase("{files}: {problem}", files=files, problem=reason), "expected two matching PEM files"
        ) from error


def _allow_many_connections() -> None:
    """Each agent and each open page needs a connection."""
    most = running.allow_many()
    if most < _MANY_FILES:
        _LOG.warning("at most %d files can be open, and each agent needs one: raise `ulimit -Hn`", most)


def keep_responsive() -> None:
    """Keep the event loop responsive.

    By default a full garbage collection, 150 ms with 2,000 agents, runs every few seconds, and a thread that
    iterates over all nodes holds the interpreter for 5 ms at a time. With 0.1 ms about twice as many
    heartbeats are answered meanwhile as with 1 ms (decision 0008).
    """
    gc.collect()
    gc.freeze()  # what exists now stays until the end
    gc.set_threshold(50_000, 20, 20)
    sys.setswitchinterval(0.0001)


def prepare_process() -> None:
    """Make files private, and log to stderr."""
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("procguard.events").setLevel(logging.INFO)
