"""HTTP over a Unix socket. Apart, since http brings ssl and email along: only who asks torch needs them."""

from __future__ import annotations

import http.client
import socket
from contextlib import suppress
from pathlib import Path

from platform_launch.observe.control import short_path


class UnixConnection(http.client.HTTPConnection):
    """With one limit for the whole answer's every step."""

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
