"""Accepting connections, even while this process has no free descriptor."""

from __future__ import annotations

import errno
import socket
import time

FOR_A_MOMENT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
"""Errors of accept() after which the socket keeps listening."""
PAUSE_S = 0.1


def accept(server: socket.socket) -> socket.socket:
    """Return the next connection; if no descriptor or memory is free, wait until there is.

    Raises OSError if the server is closed.
    """
    while True:
        try:
            return server.accept()[0]
        except OSError as error:
            if error.errno not in FOR_A_MOMENT:
                raise
            time.sleep(PAUSE_S)
