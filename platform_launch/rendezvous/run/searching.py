"""Where a node looks for its job's rendezvous, which may have moved, and when it opens one itself.

docs/decisions/0020-spare-nodes.md has the reasons, and why two parts of a job never train side by side.
"""

from __future__ import annotations

import time

from platform_launch.rendezvous.connecting import Found
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.run.gathering import LATE_S
from platform_launch.rendezvous.run.hosts import is_open_to
from platform_launch.rendezvous.run.state import RunPhase, RunState
from platform_launch.rendezvous.run.task import RunTask

# Each further place waits this much longer for the ones before it.
_NEXT_PLACE_S = 4.0


class Search:
    """What a node knows about it. Without known hosts, the rendezvous is at the address in the task."""

    def __init__(self, task: RunTask, me: Fingerprint) -> None:
        self._task = task
        self._me = me
        self._moves = bool(task.rendezvous_hosts.hosts)
        self._observed: RunState | None = None
        self._restarts = me.restarts_used
        self.restart(lost=task.lost)

    def restart(self, *, lost: bool) -> None:
        """Search from now on. ``lost``: node 0 is not expected to return."""
        self._lost = lost
        self._since = time.monotonic()

    def receive(self, state: RunState) -> None:
        """Record the state that node 0 publishes while this node waits."""
        self._observed = state
        self._restarts = max(self._restarts, state.restarts_used)  # not published while nodes gather

    @property
    def restarts(self) -> int:
        """The highest number of restarts that this node knows of."""
        return self._restarts

    @property
    def is_last_attempt(self) -> bool:
        """Whether the run that a spare waits for is the last attempt."""
        state = self._observed
        if state is None or state.phase is not RunPhase.RUNNING:
            return False
        return state.restarts_used >= self._task.max_restarts

    @property
    def elsewhere(self) -> list[str]:
        """The hosts where others may have opened a rendezvous."""
        known, usual = self._task.rendezvous_hosts, self._task.master_addr
        hosts = enumerate(known.hosts if self._moves else ())
        return [host for index, host in hosts if index != known.own and host != usual]

    @property
    def must_lead(self) -> bool:
        """Whether this node must open the rendezvous, because node 0 existed and is lost."""
        known, task = self._task.rendezvous_hosts, self._task
        has_joined = task.node.restarts_used > 0 or self._observed is not None
        if not self._moves or known.own is None or not has_joined:
            return False
        left = [host for host in known.hosts if host != task.master_addr]
        own = known.hosts[known.own]
        patience_s = _NEXT_PLACE_S if self._lost else LATE_S
        if own in left:
            patience_s += left.index(own) * _NEXT_PLACE_S
        return time.monotonic() - self._since >= patience_s and known.own_host is not None

    def obstacle(self, found: Found) -> str:
        """Return why this node does not join a rendezvous of its job that it found; empty if it does."""
        usual = found.target.host == self._task.master_addr
        if not self._moves:
            return ""
        state = found.peek(RunState)
        if state is None:
            return "" if usual else "its answer cannot be trusted"
        if is_open_to(state, self.restarts) or (usual and state.phase is RunPhase.REFUSED):
            return ""
        return "it leads an earlier start of this job, or has given up its place"
