"""HTTP over a Unix socket. A separate module, because http imports ssl and email."""

from __future__ import annotations

import http.client
import socket
from contextlib import suppress
from pathlib import Path

from platform_launch.observe.control import short_path


class UnixConnection(http.client.HTTPConnection):
    """A connection with one time limit for each step of the answer."""

    def __init__(self, path: Path, limit_s: float) -> None:
        super().__init__("localhost", timeout=limit_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket, however long its path is."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_path(self._path) as path:
            self.sock.connect(path)

    def close(self) -> None:
        """Close the connection, which the other side may have broken."""
        with suppress(OSError):
            super().close()
