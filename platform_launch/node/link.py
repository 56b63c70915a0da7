"""The meeting process of this node, seen from its launcher."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from threading import Thread

from platform_launch import rollcall
from platform_launch.rollcall import lines
from platform_launch.rollcall.lines import Invitation, Message
from platform_launch.supervise.processes import Command, start

# torch reports each failed connection with a stack trace; what matters is said in our own words. A name
# server that does not answer would cost 5 to 10 s a connection: TCPStore asks for its partner's name.
ENVIRONMENT = {"TORCH_CPP_LOG_LEVEL": "FATAL", "RES_OPTIONS": "timeout:1 attempts:1"}
_MEETING = Path(rollcall.__file__).with_name("__main__.py")
# Beside the time the meeting takes to let its guests read the outcome.
_END_S = 5.0


class Link:
    """Starts the meeting process and carries messages. ``heard(message)`` is called in a thread of the link.

    None is heard last, when the process has ended.
    """

    def __init__(
        self,
        invitation: Invitation,
        environment: Mapping[str, str],
        heard: Callable[[Message | None], None],
    ) -> None:
        self._end_limit_s = invitation.node_timeout_s + _END_S
        self._ended = False
        its_stdin, self._to = os.pipe2(os.O_CLOEXEC)
        self._from, its_stdout = os.pipe2(os.O_CLOEXEC)
        try:
            command = Command((sys.executable, str(_MEETING)), {**environment, **ENVIRONMENT})
            self.pid = start(command, {0: its_stdin, 1: its_stdout})
        finally:
            os.close(its_stdin)
            os.close(its_stdout)
        self.send(invitation)
        self._thread = Thread(target=self._listen, args=(heard,), name="meeting", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Tell the meeting process something; nothing happens when it is gone."""
        with suppress(OSError):
            os.write(self._to, lines.encode(message))

    def close(self) -> None:
        """Let the meeting process end, and reap it."""
        os.close(self._to)
        deadline = time.monotonic() + self._end_limit_s
        self._thread.join(self._end_limit_s)
        with suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self.pid, SIGKILL)
                time.sleep(0.01)

    def _listen(self, heard: Callable[[Message | None], None]) -> None:
        with os.fdopen(self._from, "rb") as messages:
            for line in messages:
                heard(lines.decode(line))
        heard(None)
