"""Supervises commands: one loop for their output, their signals, their exit and the processes they leave.

Stopping them is an agenda, a short list of times and actions:

    stop asked    forward the signal; kill after the grace time
    last exit     leftover processes get a moment to exit by themselves, then SIGTERM, then SIGKILL
    kill          SIGKILL every child, again when orphans arrive; after a while report those that are stuck
"""

from __future__ import annotations

import math
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from platform_launch.events import Event, event
from platform_launch.process_stat import catches
from platform_launch.sentences import Sentence
from platform_launch.supervise import processes
from platform_launch.supervise.channel import Channel
from platform_launch.supervise.holding import AgentHold, local_ranks_below
from platform_launch.supervise.processes import Command
from platform_launch.supervise.signals import ENDING, SignalInbox
from platform_launch.supervise.traffic import Traffic
from platform_launch.text import Phrase, joined

# Kubernetes and Slurm (KillWait) kill after 30 s, and torchrun gives its workers 30 s. Being first leaves
# time to report what had to be killed, and to pass the exit code on.
DEFAULT_GRACE_S = 25.0

# `timeout -s INT` and some process managers deliver one Ctrl-C twice within microseconds.
_SAME_KEYPRESS_S = 0.5
# A scheduler warns all nodes, and each warns the others.
_SAME_WARNING_S = 10.0
# Slurm's early signal and its end time are one reason to save.
_SAME_NOTICE_S = 600.0
# Processes that exit with their parent (resource trackers, compile workers) take less.
_LEAVE_S = 1.0
_LEFTOVER_GRACE_S = 5.0
# SIGKILL acts at once, except on a process in uninterruptible sleep in a driver or a file system.
_KILL_S = 10.0


class Watch:
    """Supervises the commands it starts, and everything they start, until all have exited.

    While it is entered, the process adopts orphans and reaps every child: the caller must have no children of
    its own to wait for. Earlier children are never signalled. Main thread only, except :meth:`stop`.
    ``grace_s`` may be a function, called when the stop is requested.

    Callbacks: ``report(event)`` for the user; ``ended(pid, code)`` for each command's exit code (negative for
    a signal); ``resized()`` when the terminal has a new size; ``ending(reason)`` when a signal or
    :meth:`stop` requests the stop; ``on_stop_requested(signal)`` before the commands get a signal that stops
    or warns them. ``what`` names the commands in events; it may be a function too.

    ``stop_signal`` is the name of the signal that requested the stop, here or elsewhere; ``stop_sentence`` is
    the first reason given to :meth:`stop`; ``warned_by`` is the last of USR1 and USR2 that was passed on,
    which need not stop anything. ``inbox`` is an open inbox of the caller, so that earlier signals are not
    lost. ``hold`` holds the agent while its ranks save. ``spread_s`` is how long a signal to this process is
    delayed, so that other nodes' commands get it at about the same time.
    """

    def __init__(
        self,
        *,
        grace_s: float | Callable[[], float],
        what: str | Callable[[], str] = "the training",
        report: Callable[[Event], None],
        ended: Callable[[int, int], None],
        resized: Callable[[], None] = lambda: None,
        ending: Callable[[str], None] = lambda _reason: None,
        inbox: SignalInbox | None = None,
        hold: AgentHold | None = None,
        on_stop_requested: Callable[[signal.Signals], None] = lambda _number: None,
        spread_s: float = 0.0,
    ) -> None:
        self.stopped_by: str | None = None
        self.stop_signal = ""
        self.stop_sentence: Sentence | None = None
        self.warned_by: signal.Signals | None = None
        self.killed: dict[int, str] = {}
        self._grace_setting = grace_s
        self._what_setting = what
        self._report = report
        self._ended = ended
        self._resized = resized
        self._ending = ending
        self._inbox = inbox or SignalInbox()
        self._opens_inbox = inbox is None
        self._hold = hold
        self._on_stop_requested = on_stop_requested
        self._spread_s = spread_s
        self._spreading: list[signal.Signals] = []
        self._spread_at = float("inf")
        self._warned_at = self._noticed_at = float("-inf")
        self._traffic = Traffic()
        self._running: set[int] = set()
        self._requests: deque[tuple[str, float, str, Sentence | None]] = deque()
        self._actions: deque[Callable[[], None]] = deque()
        self._agenda: list[tuple[float, Callable[[], None]]] = []
        self._stop_requested_at = self._kill_at = self._interrupted_at = float("inf")
        self._leaving = self._killing = self._all_ended = self._terminated = False

    @property
    def _what(self) -> Phrase:
        return Phrase(self._what_setting() if callable(self._what_setting) else self._what_setting)

    @property
    def _grace_s(self) -> float:
        return self._grace_setting() if callable(self._grace_setting) else self._grace_setting

    def __enter__(self) -> Watch:
        with ExitStack() as stack:
            if self._opens_inbox:
                stack.enter_context(self._inbox)
            self._strangers = set(processes.children())  # usually there are none
            stack.enter_context(processes.adopting_orphans())
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._running and not self._all_ended:  # an error: of several commands one could not be started
            self._kill_children()
        self._traffic.close()
        self._exit.close()

    def leave_alone(self, pid: int) -> None:
        """Neither wait for a child, nor signal it."""
        self._strangers.add(pid)

    def start(self, command: Command, descriptors: Mapping[int, int]) -> int:
        """Start a command (see :func:`processes.start`) and return its process id."""
        pid = processes.start(command, descriptors)
        self._running.add(pid)
        return pid

    def follow(self, channel: Channel) -> None:
        """Read a command's output while watching."""
        self._traffic.add(channel)

    def stop(
        self,
        reason: str,
        grace_s: float | None = None,
        signal_name: str = "",
        sentence: Sentence | None = None,
    ) -> None:
        """Request the stop, from any thread: SIGTERM now, SIGKILL after the grace time.

        ``grace_s`` may shorten the grace time of an earlier request. ``signal_name`` is the signal that
        requested the stop elsewhere, if any; ``sentence`` is the reason for programs.
        """
        grace_s = self._grace_s if grace_s is None else grace_s
        self._requests.append((reason, grace_s, signal_name, sentence))
        self._inbox.wake()

    def warn(self, number: signal.Signals) -> None:
        """Warn the commands as the signal would, in the supervising thread.

        Ranks without a handler are left alone, because they would die. A warning soon after the same signal
        to this process is ignored, and vice versa.
        """
        now = time.monotonic()
        if now - self._warned_at > _SAME_NOTICE_S and self._handles(number):
            self._warned_at, self._noticed_at, self.warned_by = now, now, number
            self._forward(number)

    def _handles(self, number: signal.Signals) -> bool:
        if self._hold is not None:
            ranks = self._hold.find_ranks()
        else:
            ranks = [pid for leader in self._running for pid in local_ranks_below(leader) or [leader]]
        return any(catches(pid, number) for pid in ranks)

    def do(self, action: Callable[[], None]) -> None:
        """Run an action in the supervising thread, between two of its steps. From any thread."""
        self._actions.append(action)
        self._inbox.wake()

    def wait(self) -> None:
        """Return when all commands and their leftovers have exited and all output is written."""
        while not self._all_ended or self._traffic.left:
            while self._actions:
                self._actions.popleft()()
            if self._requests:  # after a pause of this process, the end may have come first
                self._reap()
            if self._spreading and (self._requests or time.monotonic() >= self._spread_at):
                self._forward_spread()
            while self._requests:
                reason, grace_s, signal_name, sentence = self._requests.popleft()
                # once is enough: Python dies of a second SIGTERM during its exit
                if self.stopped_by is None:
                    self._terminated = True
                    self._on_stop_requested(signal.SIGTERM)
                    self._forward(signal.SIGTERM)
                self._end(signal.SIGTERM, reason, grace_s, signal_name, sentence)
            ready = self._poll()
            for number in self._inbox.receive():
                self._on_signal(number)
            if self._hold is not None:
                for number in self._hold.step(ready):
                    self._on_signal(number)  # the agent was signalled, but not this process
            self._traffic.move(ready)
            while self._agenda and self._agenda[0][0] <= time.monotonic():
                self._agenda.pop(0)[1]()
        while self._actions:  # actions that the end caused
            self._actions.popleft()()

    def _poll(self) -> set[int]:
        """Return the descriptors that are ready, at the latest when the next entry of the agenda is due."""
        poll = select.poll()
        poll.register(self._inbox.fd, select.POLLIN)
        due = min(self._traffic.register(poll), self._spread_at)
        if self._agenda:
            due = min(due, self._agenda[0][0])
        if self._hold is not None:
            self._hold.register(poll)
            due = min(due, self._hold.due)
        wait_ms: float | None = None
        if self._traffic.impatient:
            wait_ms = 0
        elif due < float("inf"):
            wait_ms = math.ceil(max(0.0, due - time.monotonic()) * 1000)
        return {fd for fd, _ in poll.poll(wait_ms)}

    def _on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if number is signal.SIGCHLD:
            self._reap()
        elif number is signal.SIGINT and now - self._interrupted_at > _SAME_KEYPRESS_S:
            self._kill()
        elif number in ENDING:
            if number is signal.SIGINT:
                self._interrupted_at = min(now, self._interrupted_at)
            if not (self._terminated and number is signal.SIGTERM):
                self._spread(number)
            self._end(number, number.name, self._grace_s, number.name)
        elif number is signal.SIGWINCH:
            self._resized()
            self._forward(number)
        elif now - self._noticed_at > _SAME_WARNING_S:
            self._warned_at, self.warned_by = now, number
            self._spread(number)

    def _spread(self, number: signal.Signals) -> None:
        """Forward a signal to this process, once the other nodes know about it too."""
        self._on_stop_requested(number)
        if self._spread_s and self.stopped_by is None:
            self._spreading.append(number)
            self._spread_at = min(self._spread_at, time.monotonic() + self._spread_s)
        else:
            self._forward(number)

    def _forward_spread(self) -> None:
        spreading, self._spreading, self._spread_at = self._spreading, [], float("inf")
        for number in spreading:
            self._forward(number)

    def _forward(self, number: signal.Signals) -> None:
        """Signal the commands; the ranks of one that can be held get it once it is."""
        for leader in self._running:
            processes.signal_group(leader, number)
        if self._hold is not None and number is not signal.SIGWINCH:
            self._hold.signalled(number)

    def _end(
        self,
        number: signal.Signals,
        reason: str,
        grace_s: float,
        signal_name: str,
        sentence: Sentence | None = None,
    ) -> None:
        """Start the grace time at the first request; later requests can only shorten it."""
        now = time.monotonic()
        end = now + grace_s
        first = self.stopped_by is None
        if first:
            self._stop_requested_at = now
            self.stop_signal, self.stop_sentence = signal_name, sentence
        elif end >= self._kill_at:
            return
        self.stopped_by = self.stopped_by or reason
        self._kill_at = min(self._kill_at, end)
        if self._all_ended:
            self._agenda = [(end, self._traffic.abandon)]
        elif not self._leaving and not self._killing:
            self._agenda = [(end, self._kill)]
        self._report(
            event(
                "end-asked",
                reason=reason,
                what=self._what,
                grace_s=grace_s,
                again="; Ctrl-C again kills at once" if number is signal.SIGINT else "",
                signal=signal_name,
            )
        )
        if first:
            self._ending(reason)

    def _reap(self) -> None:
        for pid, code in processes.reap():
            self._strangers.discard(pid)
            if pid in self._running:
                self._running.remove(pid)
                self._ended(pid, code)
        if self._all_ended:
            return
        if self._killing:
            self._kill_children()
        if not self._running:
            if not self._leftovers():
                self._finish()
            elif not self._leaving and not self._killing:
                self._wait_for_leftovers()

    def _wait_for_leftovers(self) -> None:
        self._leaving = True
        now = time.monotonic()
        self._kill_at = min(self._kill_at, now + _LEAVE_S + _LEFTOVER_GRACE_S)
        # With little of a grace time left, the kill comes first and replaces the rest of the agenda.
        plan = [(now + _LEAVE_S, self._stop_leftovers), (self._kill_at, self._kill)]
        self._agenda = sorted(plan, key=lambda entry: entry[0])

    def _stop_leftovers(self) -> None:
        left = self._leftovers()
        self._report(event("leftovers-asked", what=self._what, processes=_names(left)))
        for pid in left:
            processes.signal_child(pid, signal.SIGTERM)

    def _leftovers(self) -> dict[int, str]:
        """Return the running children that are ours; orphans from deeper levels become our children too."""
        return {pid: name for pid, name in processes.children().items() if pid not in self._strangers}

    def _kill(self) -> None:
        if self._killing or self._all_ended:  # requested again: only a stuck process or reader is left
            self._traffic.abandon()
            return
        self._killing = True
        self._agenda = [(time.monotonic() + _KILL_S, self._give_up)]
        processes_left = _names(self._leftovers())
        if self._running and self.stopped_by is not None:
            limit_s = round(min(time.monotonic(), self._kill_at) - self._stop_requested_at, 1)
            self._report(event("overdue-killed", what=self._what, limit_s=limit_s, processes=processes_left))
        else:
            self._report(event("leftovers-killed", what=self._what, processes=processes_left))
        self._kill_children()

    def _kill_children(self) -> None:
        for pid, name in self._leftovers().items():
            self.killed[pid] = name
            processes.signal_child(pid, signal.SIGKILL)

    def _give_up(self) -> None:
        self._report(event("process-stuck", limit_s=_KILL_S, processes=_names(self._leftovers())))
        self._finish()

    def _finish(self) -> None:
        """Drain the pipes: none of our processes runs any more."""
        self._all_ended = True
        self._traffic.last_call()
        self._agenda = []
        if self.stopped_by is not None:
            # Whoever requested the stop waits for us, not for a reader that may have stopped reading.
            self._agenda = [(max(self._kill_at, time.monotonic() + _LEAVE_S), self._traffic.abandon)]


def _names(processes_left: Mapping[int, str]) -> str:
    return joined(f"{name} (pid {pid})" for pid, name in sorted(processes_left.items())) or Phrase("nothing")
