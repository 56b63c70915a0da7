"""Holds the agent of a node (torchrun, accelerate) while its ranks save.

An agent that is asked to stop kills its ranks, and when its first rank exits it kills the others. Either way,
a rank that takes longer to save loses its checkpoint. So the hook in the agent
(``observe/hook/_platform_launch_stop.py``) reports each signal on one pipe, and blocks the agent's main
thread until an answer arrives on another. Meanwhile the launcher sends the signal to each rank, once. If the
launcher is killed, the kernel closes its pipes, so the agent is never held longer than the launcher lives.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.process_stat import read_stat
from platform_launch.supervise import processes
from platform_launch.supervise.signals import WARNING

# In the agent's environment only: its ends of the two pipes, and the launcher whose child it must be.
VARIABLE = "PLATFORM_LAUNCH_HOLD"

# The hook answers within milliseconds, unless the agent is in C code; then the ranks do not wait any longer.
_ANSWER_S = 2.0
# If the kernel has no pidfd (before Linux 5.3).
_LOOK_S = 0.2
# A scheduler that signals both the launcher and the agent means one warning, not two.
_SAME_S = 1.0

# What a held agent does next: its own handler, nothing, or exit with 128 + the signal.
_HANDLE, _FORGET, _EXIT = b"h", b"f", b"x"


@dataclass
class Rank:
    """A process that an agent has started. ``exit_code`` is negative for a signal, None while it runs."""

    pid: int
    local_rank: int | None
    pidfd: int = -1
    exit_code: int | None = None


class AgentHold:
    """The launcher's side of the hold on one agent. ``ranks`` are known once a request has come.

    ``grace_s`` is how long the other ranks may take after a warning (USR1, USR2) has ended one.
    """

    def __init__(self, grace_s: float) -> None:
        self.ranks: list[Rank] = []
        self._grace_s = grace_s
        self._agent = 0
        self._read_fd = self._agent_write_fd = self._write_fd = self._agent_read_fd = -1
        self._is_hooked = self._is_holding = False
        self._to_send: list[signal.Signals] = []
        self._sent_at: dict[signal.Signals, float] = {}
        self._answer_by = self._release_at = float("inf")

    def open(self) -> tuple[dict[str, str], dict[int, int]]:
        """Return the variables and the descriptors to start the agent with."""
        self._read_fd, self._agent_write_fd = os.pipe2(os.O_CLOEXEC)
        self._agent_read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        agent_fds = (self._agent_write_fd, self._agent_read_fd)
        return {VARIABLE: f"{agent_fds[0]},{agent_fds[1]},{os.getpid()}"}, {fd: fd for fd in agent_fds}

    def started(self, agent: int) -> None:
        """Set the agent's process id, once it has its ends of the pipes."""
        self._agent = agent
        self._close_agent_ends()

    def close(self) -> None:
        """Let the agent continue, if it still runs."""
        self._close_agent_ends()
        self._forget_ranks()
        for fd in (self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self._write_fd = -1

    @property
    def due(self) -> float:
        """When :meth:`step` must be called at the latest (time.monotonic())."""
        look = self._is_holding and any(rank.exit_code is None and rank.pidfd < 0 for rank in self.ranks)
        return min(self._answer_by, self._release_at, time.monotonic() + _LOOK_S if look else float("inf"))

    def signalled(self, number: signal.Signals) -> None:
        """Handle a signal that was sent to the agent. An agent without a hook acts on it by itself."""
        if self._is_hooked and self._read_fd >= 0 and not self._has_sent(number):
            self._to_send.append(number)
            self._answer_by = min(self._answer_by, time.monotonic() + _ANSWER_S)

    def find_ranks(self) -> list[int]:
        """Return the process ids of the ranks that the agent has started."""
        return [rank.pid for rank in _ranks_of(self._agent)]

    def register(self, poll: select.poll) -> None:
        """Register what to wait for."""
        if self._read_fd >= 0:
            poll.register(self._read_fd, select.POLLIN)
        for rank in self.ranks:
            if rank.pidfd >= 0 and rank.exit_code is None:
                poll.register(rank.pidfd, select.POLLIN)

    def step(self, ready: set[int]) -> list[signal.Signals]:
        """Do what is due; return the signals that reached the agent but did not come from the launcher."""
        unsent = self._read() if self._read_fd in ready else []
        if time.monotonic() >= self._answer_by:
            self._signal_ranks()
        if self._is_holding:
            self._check_ranks(ready)
        return unsent

    def _read(self) -> list[signal.Signals]:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._read_fd, 64)
            if not data:  # the agent is gone
                os.close(self._read_fd)
                self._read_fd, self._answer_by = -1, float("inf")
        self._is_hooked = self._is_hooked or b"\0" in data
        held = [signal.Signals(byte) for byte in data if byte]
        unsent = [one for one in held if one not in self._to_send and not self._has_sent(one)]
        self._to_send += unsent
        if held:
            self._signal_ranks()
        return unsent

    def _has_sent(self, number: signal.Signals) -> bool:
        """Return whether the ranks got this signal. A warning may be repeated, a request to stop may not."""
        sent_at = self._sent_at.get(number)
        return sent_at is not None and (number not in WARNING or time.monotonic() - sent_at < _SAME_S)

    def _signal_ranks(self) -> None:
        """Send the pending signals to each rank, except in the agent's own group, which got them already."""
        self._answer_by = float("inf")
        if not self._is_holding:
            self._is_holding = True
            self._forget_ranks()
            self._sent_at.clear()
            self.ranks = _ranks_of(self._agent)
            for rank in self.ranks:
                with suppress(OSError, AttributeError):
                    rank.pidfd = os.pidfd_open(rank.pid)
        for number in self._to_send:
            self._sent_at[number] = time.monotonic()
            for rank in self.ranks:
                with suppress(ProcessLookupError, PermissionError):
                    if rank.exit_code is None and os.getpgid(rank.pid) != self._agent:
                        os.kill(rank.pid, number)
        self._to_send.clear()

    def _check_ranks(self, ready: set[int]) -> None:
        for rank in self.ranks:
            if rank.exit_code is None and (rank.pidfd in ready or rank.pidfd < 0):
                rank.exit_code = _exit_code(rank.pid)
        ended = [rank.exit_code for rank in self.ranks if rank.exit_code is not None]
        only_warned = WARNING.issuperset(self._sent_at)
        if len(ended) == len(self.ranks):
            failed = any(code and not _by_request(code) for code in ended)
            self._release(_FORGET if failed or (only_warned and not any(ended)) else _EXIT)
        elif time.monotonic() >= self._release_at:
            self._release(_HANDLE)
        elif ended and only_warned:
            if any(code and not _by_request(code) for code in ended):
                self._release(_FORGET)
            else:
                self._release_at = min(self._release_at, time.monotonic() + self._grace_s)

    def _release(self, answer: bytes) -> None:
        self._is_holding = False
        self._release_at = float("inf")
        with suppress(OSError):
            os.write(self._write_fd, answer)

    def _forget_ranks(self) -> None:
        for rank in self.ranks:
            if rank.pidfd >= 0:
                os.close(rank.pidfd)
        self.ranks = []

    def _close_agent_ends(self) -> None:
        for fd in (self._agent_write_fd, self._agent_read_fd):
            if fd >= 0:
                os.close(fd)
        self._agent_write_fd = self._agent_read_fd = -1


def _ranks_of(agent: int) -> list[Rank]:
    """Return the children of an agent that have a local rank; all children if none has."""
    found = [Rank(pid, _local_rank(pid)) for pid in processes.children_of(agent)]
    return [rank for rank in found if rank.local_rank is not None] or found


def local_ranks_below(parent: int) -> list[int]:
    """Return the children of a process that have a local rank."""
    return [pid for pid in processes.children_of(parent) if _local_rank(pid) is not None]


def _local_rank(pid: int) -> int | None:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == b"LOCAL_RANK" and value.isdigit():
                return int(value)
    return None


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a process that its held parent cannot reap; None while it runs.

    A process whose main thread has exited is a zombie while its other threads still run, so they are counted.
    """
    stat = read_stat(Path("/proc", str(pid)))
    if stat is None:
        return -int(signal.SIGKILL)  # reaped: the agent is not held
    if not stat.ended or _has_threads(pid):
        return None
    return os.waitstatus_to_exitcode(stat.exit_status)


def _has_threads(pid: int) -> bool:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task")) > 1  # noqa: PTH208 - counted only
    return False


def _by_request(code: int) -> bool:
    """Return whether an exit code is that of a process that was asked to stop."""
    number = -code if code < 0 else code - 128
    return number in {int(one) for one in _STOPPING}


_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *WARNING)
