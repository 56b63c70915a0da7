"""Which user is at the other end of a Unix socket, according to the kernel."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


def user_behind(connection: socket.socket) -> int:
    """Return the user id of the process that connected, or that listens."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return int(user)
