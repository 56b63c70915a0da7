"""The helper in the rendezvous for as long as a training runs: where one is lost, another takes its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from platform_launch.errors import LaunchError, NodesAbsentError
from platform_launch.events import event
from platform_launch.launch.link import HelperLink
from platform_launch.rendezvous.ending import EndKind, NodeEnding
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.run.launcher import RendezvousLost, RunSoFar, RunTask
from platform_launch.rendezvous.run.state import StopAll, TrainingEnded
from platform_launch.supervise import Supervisor

# A helper that is lost again and again is started anew less and less often.
_QUICK_REJOINS = 3
_MOST_PAUSE_S = 60.0
# Once the training has ended, what the other nodes still say is not worth more tries.
_LATE_REJOINS = 2
_AGAIN_S = 1.0


class LastingLink:
    """Carries messages as a HelperLink does, over one helper after another, from :meth:`open` on.

    ``receive(message)`` is called in a thread of the link, with None when the last helper has ended.
    """

    def __init__(
        self,
        task: RunTask,
        receive: Callable[[Message | None], None],
        still_s: Callable[[], float | None],
    ) -> None:
        self._task = task
        self._receive = receive
        self._still_s = still_s
        self._supervisor: Supervisor | None = None
        self._so_far: RunSoFar | None = None
        self._to_repeat: dict[type[Message], Message] = {}
        self._rejoins = self._late_rejoins = 0
        self._link: HelperLink | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def open(self, environment: Mapping[str, str]) -> None:
        """Start the first helper. Raises LaunchError."""
        self._environment = environment
        self._link = self._connect(self._task)

    def send(self, message: Message) -> None:
        """Tell the helper something; nothing happens when it is gone."""
        if self._link is not None:
            self._link.send(message)

    def tell(self, message: StopAll | TrainingEnded) -> None:
        """Say what must reach the others, also where the helper is lost on the way."""
        self._to_repeat[type(message)] = message
        self.send(message)

    def keep(self, task: RunTask, environment: Mapping[str, str], supervisor: Supervisor) -> None:
        """Replace a helper that is lost, which is no reason to stop: the training of ``task`` begins."""
        self._task, self._environment, self._supervisor = task, environment, supervisor

    def let_go(self) -> None:
        """Replace none any more: it is known how the run ends."""
        self._supervisor = None

    def killed_by(self) -> str:
        """Return the signal that ended the last helper, empty where it ended otherwise."""
        return self._link.killed_by() if self._link is not None else ""

    def close(self) -> None:
        """Let the helper end."""
        self._closed.set()
        with self._lock:
            link = self._link
        if link is not None:
            link.close()

    def _connect(self, task: RunTask) -> HelperLink:
        return HelperLink(task, self._environment, self._hear, self._still_s)

    def _hear(self, message: Message | None) -> None:
        if isinstance(message, RunSoFar):
            self._so_far = message
        elif message is not None or not self._rejoin():
            self._receive(message)

    def _rejoin(self) -> bool:
        """Start another helper in the place of the one that has ended; tell whether there is one."""
        while True:
            supervisor, ended = self._supervisor, TrainingEnded in self._to_repeat
            if supervisor is None or self._closed.is_set() or (ended and self._late_rejoins == _LATE_REJOINS):
                return False
            if self._task.leads and self._so_far is None:
                node = self._task.node
                lost = NodeEnding(
                    EndKind.HELPER_KILLED, node.node_rank, node.place, NodesAbsentError.exit_code
                )
                self._receive(RendezvousLost(lost))
                return False
            self._late_rejoins += ended
            pause_s = _AGAIN_S if ended else min(2 ** (self._rejoins + 1), _MOST_PAUSE_S)
            if self._rejoins >= _QUICK_REJOINS and self._closed.wait(pause_s):
                return False
            try:
                with self._lock:
                    if self._closed.is_set():
                        return False
                    link = self._connect(replace(self._task, rejoining=True, so_far=self._so_far))
                    self._link = link
                    supervisor.spare(link.pid)
            except (LaunchError, OSError, RuntimeError) as error:  # no process, descriptor or thread is left
                supervisor.tell(event("helper-not-started", problem=str(error)))
                if self._closed.wait(_AGAIN_S):
                    return False
                continue
            self._rejoins += 1
            for message in list(self._to_repeat.values()):
                self.send(message)
            return True
