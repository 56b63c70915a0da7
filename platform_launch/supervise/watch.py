"""Staying responsible for commands: one loop for their output, their signals, their end and what they leave.

The phases of an end are entries of an agenda, a short list of times and actions:

    stop asked    forward the signal; after the grace time kill
    last exit     leftover processes get a moment to go by themselves, then SIGTERM, then SIGKILL
    kill          SIGKILL to every child, again as their orphans come to us; after a while name what is stuck
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
from platform_launch.observe.processes import catches
from platform_launch.sentences import Sentence
from platform_launch.supervise import processes
from platform_launch.supervise.channel import Channel
from platform_launch.supervise.holding import AgentHold, local_ranks_below
from platform_launch.supervise.processes import Command
from platform_launch.supervise.signals import ENDING, SignalInbox
from platform_launch.supervise.traffic import Traffic
from platform_launch.text import Phrase

# Kubernetes and Slurm (KillWait) kill after 30 s, and torchrun gives its workers 30 s: to be first leaves
# time to say who had to be killed and to hand the exit code on.
DEFAULT_GRACE_S = 25.0

# `timeout -s INT` and some process managers deliver one Ctrl-C twice within microseconds.
_SAME_KEYPRESS_S = 0.5
# A scheduler warns all nodes, and each tells the others.
_SAME_WARNING_S = 10.0
# Slurm's signal ahead of the end and the end time itself are one reason to save.
_SAME_NOTICE_S = 600.0
# Processes that follow their parent by themselves (resource trackers, compile workers) take less.
_LEAVE_S = 1.0
_LEFTOVER_GRACE_S = 5.0
# SIGKILL acts at once, save in uninterruptible sleep inside a driver or a file system.
_KILL_S = 10.0


class Watch:
    """Keeps the commands it starts, and everything they start, from first to last.

    While it is entered, the process adopts orphans and every ended child is reaped: the caller has no
    children of its own to wait for. Children that were there before are never signalled. Main thread only,
    except :meth:`stop`. ``grace_s`` may depend on what runs when the end is asked for. ``tell(event)`` takes
    what the user should know; ``ended(pid, code)`` hears each command's exit code (negative for a signal),
    ``resized()`` that the terminal has a new size, ``ending()`` that a signal or :meth:`stop` asked for the
    end. ``what`` names the commands in those lines.
    ``stop_signal`` is the name of the signal that asked for the end, here or elsewhere, if one did;
    ``stop_sentence`` is what :meth:`stop` was given by whoever asked first;
    ``warned_by`` is the last of USR1 and USR2 that was handed on, which need not end anything. ``inbox`` is
    the caller's, opened already, where it has one: a signal that came before is then not lost. ``hold`` is on
    the agent that is started, if it can be held while its ranks save. ``asked(signal)`` hears that the
    commands are about to get a signal that asks them to stop, or warns them. ``spread_s`` is how long a
    signal to this process waits before the commands get it: other nodes' get it at about the same time.
    """

    def __init__(
        self,
        *,
        grace_s: float | Callable[[], float],
        what: str = "the training",
        tell: Callable[[Event], None],
        ended: Callable[[int, int], None],
        resized: Callable[[], None] = lambda: None,
        ending: Callable[[str], None] = lambda _reason: None,
        inbox: SignalInbox | None = None,
        hold: AgentHold | None = None,
        asked: Callable[[signal.Signals], None] = lambda _number: None,
        spread_s: float = 0.0,
    ) -> None:
        self.stopped_by: str | None = None
        self.stop_signal = ""
        self.stop_sentence: Sentence | None = None
        self.warned_by: signal.Signals | None = None
        self.killed: dict[int, str] = {}
        self._asked_grace_s = grace_s
        self._what = Phrase(what)
        self._tell = tell
        self._ended = ended
        self._resized = resized
        self._ending = ending
        self._inbox = inbox or SignalInbox()
        self._opens_inbox = inbox is None
        self._hold = hold
        self._asked = asked
        self._spread_s = spread_s
        self._spreading: list[signal.Signals] = []
        self._spread_at = float("inf")
        self._warned_at = self._noticed_at = float("-inf")
        self._traffic = Traffic()
        self._running: set[int] = set()
        self._requests: deque[tuple[str, float, str, Sentence | None]] = deque()
        self._actions: deque[Callable[[], None]] = deque()
        self._agenda: list[tuple[float, Callable[[], None]]] = []
        self._kill_at = self._interrupted_at = float("inf")
        self._leaving = self._killing = self._gone = self._terminated = False

    @property
    def _grace_s(self) -> float:
        return self._asked_grace_s() if callable(self._asked_grace_s) else self._asked_grace_s

    def __enter__(self) -> Watch:
        with ExitStack() as stack:
            if self._opens_inbox:
                stack.enter_context(self._inbox)
            self._strangers = set(processes.children())
            stack.enter_context(processes.adopting_orphans())
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._running and not self._gone:  # an error: of several commands one could not be started
            self._kill_children()
        self._traffic.close()
        self._exit.close()

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
        """Ask for the end, from any thread: SIGTERM now, SIGKILL after the grace time.

        A ``grace_s`` of its own may shorten that of an end which was asked for before. ``signal_name`` is the
        signal that asked for it elsewhere, if one did; ``sentence`` the reason as programs read it.
        """
        grace_s = self._grace_s if grace_s is None else grace_s
        self._requests.append((reason, grace_s, signal_name, sentence))
        self._inbox.wake()

    def warn(self, number: signal.Signals) -> None:
        """Warn the commands as the signal would, in the thread that watches.

        Ranks without a handler would die of it, and are left alone. Nothing happens soon after a signal to
        this process that said the same, and such a signal is not passed on soon after this.
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
        """Let the thread that watches do something, between two of its own steps. From any thread."""
        self._actions.append(action)
        self._inbox.wake()

    def wait(self) -> None:
        """Return when every command and every process they left is gone and all output is written."""
        while not self._gone or self._traffic.left:
            while self._actions:
                self._actions.popleft()()
            if self._requests:  # after a pause of this process there may be an end that came first
                self._reap()
            if self._spreading and (self._requests or time.monotonic() >= self._spread_at):
                self._forward_spread()
            while self._requests:
                reason, grace_s, signal_name, sentence = self._requests.popleft()
                # Once is enough: Python, for one, dies of a SIGTERM that comes while it ends for the first.
                if self.stopped_by is None:
                    self._terminated = True
                    self._asked(signal.SIGTERM)
                    self._forward(signal.SIGTERM)
                self._end(signal.SIGTERM, reason, grace_s, signal_name, sentence)
            ready = self._poll()
            for number in self._inbox.take():
                self._on_signal(number)
            if self._hold is not None:
                for number in self._hold.move(ready):
                    self._on_signal(number)  # somebody has signalled the agent, and not this process
            self._traffic.move(ready)
            while self._agenda and self._agenda[0][0] <= time.monotonic():
                self._agenda.pop(0)[1]()
        while self._actions:  # what the end itself gave rise to
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
        """Forward a signal to this process, once the other nodes have heard of it as well."""
        self._asked(number)
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
            self._hold.asked(number)

    def _end(
        self,
        number: signal.Signals,
        reason: str,
        grace_s: float,
        signal_name: str,
        sentence: Sentence | None = None,
    ) -> None:
        """Start the grace time when the end is asked for the first time; later it can only be shortened."""
        end = time.monotonic() + grace_s
        first = self.stopped_by is None
        if first:
            self.stop_signal, self.stop_sentence = signal_name, sentence
        elif end >= self._kill_at:
            return
        self.stopped_by = self.stopped_by or reason
        self._kill_at = min(self._kill_at, end)
        if self._gone:
            self._agenda = [(end, self._traffic.abandon)]
        elif not self._leaving and not self._killing:
            self._agenda = [(end, self._kill)]
        self._tell(
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
        if self._gone:
            return
        if self._killing:
            self._kill_children()
        if not self._running:
            if not self._left():
                self._finish()
            elif not self._leaving and not self._killing:
                self._wait_for_leftovers()

    def _wait_for_leftovers(self) -> None:
        self._leaving = True
        now = time.monotonic()
        self._kill_at = min(self._kill_at, now + _LEAVE_S + _LEFTOVER_GRACE_S)
        # With little of a grace time left, the kill comes first and replaces the rest of the agenda.
        plan = [(now + _LEAVE_S, self._ask_leftovers), (self._kill_at, self._kill)]
        self._agenda = sorted(plan, key=lambda entry: entry[0])

    def _ask_leftovers(self) -> None:
        left = self._left()
        self._tell(event("leftovers-asked", what=self._what, processes=_named(left)))
        for pid in left:
            processes.signal_child(pid, signal.SIGTERM)

    def _left(self) -> dict[int, str]:
        """Return the living children that are ours; orphans of deeper levels come to be among them."""
        if not processes.has_children():
            return {}
        return {pid: name for pid, name in processes.children().items() if pid not in self._strangers}

    def _kill(self) -> None:
        if self._killing or self._gone:  # asked once more: only a stuck process or reader is left to wait for
            self._traffic.abandon()
            return
        self._killing = True
        self._agenda = [(time.monotonic() + _KILL_S, self._give_up)]
        self._tell(event("leftovers-killed", what=self._what, processes=_named(self._left())))
        self._kill_children()

    def _kill_children(self) -> None:
        for pid, name in self._left().items():
            self.killed[pid] = name
            processes.signal_child(pid, signal.SIGKILL)

    def _give_up(self) -> None:
        self._tell(event("process-stuck", limit_s=_KILL_S, processes=_named(self._left())))
        self._finish()

    def _finish(self) -> None:
        """Nothing of ours runs any more: what is in the pipes is all that comes."""
        self._gone = True
        self._traffic.last_call()
        self._agenda = []
        if self.stopped_by is not None:
            # Whoever asked for the end waits for us, not for a reader that may have stopped reading.
            self._agenda = [(max(self._kill_at, time.monotonic() + _LEAVE_S), self._traffic.abandon)]


def _named(processes_left: Mapping[int, str]) -> str:
    return ", ".join(f"{name} (pid {pid})" for pid, name in sorted(processes_left.items())) or "nothing"
