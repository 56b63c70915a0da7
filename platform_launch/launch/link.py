"""The helper process that stands in the rendezvous for this node, seen from its launcher."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from signal import SIGKILL
from threading import Event, Lock, Thread

from platform_launch import helper
from platform_launch.files import write_all
from platform_launch.hardware.names import without_lookups
from platform_launch.rendezvous.liveness import SilenceClock
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.run.launcher import HelperAlive, LauncherAlive, RunTask, fault
from platform_launch.rendezvous.run.silence import SILENT_S
from platform_launch.supervise.processes import Command, signal_name, start

# torch reports each failed connection with a stack trace; what matters is said in our own words.
ENVIRONMENT = {"TORCH_CPP_LOG_LEVEL": "FATAL"}
# How long node 0 lets the others read the outcome, and some.
_END_S = SILENT_S + 5.0
_ALIVE_EVERY_S = 1.0
_REAPED_S = 2.0
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True)
class HelperSilent(Message):
    """The link itself has this to say: the helper gave no sign of life, and was killed."""

    silent_s: float


class HelperLink:
    """Starts the helper process and carries messages. ``heard(message)`` is called in a thread of the link.

    None is heard last, when the process has ended.
    """

    def __init__(
        self,
        task: RunTask,
        environment: Mapping[str, str],
        heard: Callable[[Message | None], None],
        still_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._still_s = still_s
        self._lock = Lock()
        self._closed = Event()
        command = Command(helper.command("rendezvous"), without_lookups({**environment, **ENVIRONMENT}))
        with ExitStack() as undoing, ExitStack() as its_own:  # no descriptor, process or thread may be left
            its_stdin, self._to = os.pipe2(os.O_CLOEXEC)
            its_own.callback(os.close, its_stdin)
            undoing.callback(self._shut)
            self._from, its_stdout = os.pipe2(os.O_CLOEXEC)
            its_own.callback(os.close, its_stdout)
            undoing.callback(os.close, self._from)
            self.pid = start(command, {0: its_stdin, 1: its_stdout})
            its_own.close()
            undoing.callback(os.waitpid, self.pid, 0)
            undoing.callback(self._kill)
            self.send(task)
            Thread(target=self._give_signs_of_life, name="alive", daemon=True).start()
            self._thread = Thread(target=self._listen, args=(heard,), name="rendezvous", daemon=True)
            self._thread.start()
            undoing.pop_all()

    def send(self, message: Message) -> None:
        """Tell the helper process something; nothing happens when it is gone."""
        data = encode(message) + b"\n"
        with self._lock, suppress(OSError):
            if not self._closed.is_set():
                write_all(self._to, data)

    def close(self) -> None:
        """Let the helper process end, and reap it."""
        self._shut()
        deadline = time.monotonic() + _END_S
        self._thread.join(_END_S)
        with suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self.pid, SIGKILL)
                time.sleep(0.01)

    def killed_by(self) -> str:
        """Return the signal that ended a helper whose end was heard, empty where it ended otherwise."""
        deadline = time.monotonic() + _REAPED_S
        with suppress(ChildProcessError):
            while time.monotonic() < deadline:  # its descriptors are closed a moment before it can be reaped
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    return signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ""
                time.sleep(0.01)
        return ""

    def _shut(self) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                os.close(self._to)

    def _give_signs_of_life(self) -> None:
        while not self._closed.wait(_ALIVE_EVERY_S):
            self.send(LauncherAlive(self._still_s()))

    def _listen(self, heard: Callable[[Message | None], None]) -> None:
        """Carry what the helper says until it has ended; one that says what cannot be read is killed."""
        try:
            self._carry(heard)
        except InvalidMessageError as error:
            heard(fault(error))
            self._kill()
        os.close(self._from)
        self._shut()
        heard(None)

    def _carry(self, heard: Callable[[Message | None], None]) -> None:
        """Carry what the helper says. One that has stopped saying that it lives is killed, which ends it."""
        silence: SilenceClock | None = None
        held = b""
        begun = False
        while True:
            ready = select.select([self._from], [], [], _ALIVE_EVERY_S)[0]
            data = os.read(self._from, _CHUNK_BYTES) if ready else b""
            now = time.monotonic()
            if ready and not data:
                break
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                try:
                    message = decode(line.rstrip(), Message)
                except InvalidMessageError:
                    if begun:
                        raise
                    continue  # what every Python of this image prints when it starts
                begun = True
                if not isinstance(message, HelperAlive):
                    heard(message)
                elif silence is None:
                    silence = SilenceClock(now)
            if data and silence is not None:
                silence.heard(now)
            elif silence is not None and silence.observe(now) >= SILENT_S:
                heard(HelperSilent(silence.silent_s))
                silence = None
                self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, SIGKILL)
