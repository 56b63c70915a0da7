"""The private socket of a launch: it answers ``platform-launch inspect`` and ``profile`` on its machine."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from platform_launch import sockets

_NAME = "control.socket"
_LIMIT_S = 30.0
_MOST_BYTES = 512 * 1024 * 1024
_LONGEST_REQUEST = 64 * 1024
_PROBLEM = "no_answer"
_CREDENTIALS = struct.Struct("iII")  # pid, uid and gid: struct ucred


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a short path to a socket: socket addresses are limited to 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class ControlSocket:
    """Answers a line of JSON with a JSON document, each in a thread; the folder's mode keeps others out."""

    def __init__(self, folder: Path, answer: Callable[[Mapping[str, object]], Mapping[str, object]]) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(folder / _NAME) as path:
            self._socket.bind(path)
        (folder / _NAME).chmod(0o600)
        self._socket.listen(4)

    def start(self) -> None:
        """Start answering, in a thread."""
        Thread(target=self._serve, name="inspect", daemon=True).start()

    def stop(self) -> None:
        """Stop answering."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = sockets.accept(self._socket)
            except OSError:
                return
            try:
                Thread(target=self._serve_one, args=(connection,), name="inspect", daemon=True).start()
            except RuntimeError:  # no thread can be started
                connection.close()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_LIMIT_S)
            with connection.makefile("rb") as lines:
                line = lines.readline(_LONGEST_REQUEST)
            connection.sendall(self._document(line))

    def _document(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
            return json.dumps(self._answer(request if isinstance(request, dict) else {})).encode()
        except Exception as error:  # the next request may succeed
            return json.dumps({_PROBLEM: f"{type(error).__name__}: {error}"}).encode()


def find_sockets(temporary: Path, owner: object = None) -> list[Path]:
    """Return the control sockets below a temporary folder that this user may query, the newest last.

    A launch's is in ``platform_launch_UID/observe…``; root finds those of all users, or of the ``owner``.
    """
    found = []
    for path in temporary.glob(f"platform_launch_*/observe*/{_NAME}"):
        with suppress(FileNotFoundError):  # it has just ended
            at = path.lstat()
            if os.geteuid() in (0, at.st_uid) and owner in (None, at.st_uid):
                found.append((at.st_mtime, path))
    return [path for _, path in sorted(found)]


def ask(path: Path, limit_s: float = _LIMIT_S, **request: object) -> dict[str, object] | None:
    """Return a launch's answer, None if it has ended. Raises TimeoutError, ValueError.

    The kernel adds the launcher's ``pid`` and ``uid``, so that a launch cannot pass for another.
    """
    deadline = time.monotonic() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_s)
        try:
            with short_path(path) as short:
                connection.connect(short)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        data = bytearray()
        with suppress(BrokenPipeError, ConnectionResetError):  # it is ending
            connection.sendall(json.dumps(request).encode() + b"\n")
            while chunk := connection.recv(1024 * 1024):
                data += chunk
                if time.monotonic() > deadline or len(data) > _MOST_BYTES:
                    raise TimeoutError(f"no whole answer in {limit_s:g} s and {_MOST_BYTES >> 20} MiB")
    if not data:  # it ended during the query
        return None
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"an answer of {len(data)} bytes that is no JSON object")  # noqa: TRY004 - was sent
    if _PROBLEM in document:
        raise ValueError(str(document[_PROBLEM]))
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return document | {"pid": pid, "uid": uid}
