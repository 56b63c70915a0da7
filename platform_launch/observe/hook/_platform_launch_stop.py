"""Lets a rank save when its node is asked to stop: its helpers and its agent do not react before it.

A rank that is asked to stop needs its helper processes (DataLoader workers, compile workers) for a few more
steps, and its agent (torchrun, accelerate) must not end the others when the first rank leaves. So:

- The agent holds: when a request arrives, its main thread waits until the launcher lets it continue. Its
  other threads, and the store it serves, keep running.
- Each helper of a rank leads its own process group, so that a signal to the rank's group misses it.
- Helpers started by multiprocessing also accept requests only from their parent and their rank: a scheduler
  may signal every process of a node.
- A rank then gets a request twice, from the scheduler and from the launcher. It handles it once.

Loaded by ``sitecustomize.py`` under the same rules: it never fails a script, and imports nothing of this
package.
"""

import os
import signal
import sys

# "HELD,GO,LAUNCHER": two descriptors and a process id, for the agent alone.
_HOLD = "PLATFORM_LAUNCH_HOLD"
# What this process inherits: "agent:PID" below an agent, "rank:PID" below a rank.
_BELOW = "PLATFORM_LAUNCH_BELOW"
_REQUESTS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# The same request within this time counts as one.
_SAME_S = 2.0
# Ctrl-\ requests a core dump of the process it is sent to.
_SHIELDED = tuple(number for number in _REQUESTS if number != signal.SIGQUIT)


def prepare(after_import):
    """Set up the role of this process; ``after_import(name, act)`` acts once a module has been imported."""
    hold = [int(number) for number in os.environ.pop(_HOLD, "").split(",") if number]
    if len(hold) == 3 and hold[2] == os.getppid():
        _Agent(hold[0], hold[1]).hold_on_requests()
        os.environ[_BELOW] = "agent:%d" % os.getpid()
        return
    kind, _, pid = os.environ.get(_BELOW, "").partition(":")
    if kind == "rank" and pid != str(os.getpid()):
        rank, is_helper = int(pid), True
    elif (kind == "agent" and pid == str(os.getppid())) or (not kind and "LOCAL_RANK" in os.environ):
        rank, is_helper = os.getpid(), False
        os.environ[_BELOW] = "rank:%d" % rank
    elif kind == "rank":  # a rank that became another program (exec)
        rank, is_helper = os.getpid(), False
    else:
        return
    shield = _Shield(rank)
    os.register_at_fork(after_in_child=shield.after_fork)
    if not is_helper:
        _Requests().handle_once()
    else:
        _lead_own_group()
        # immediately, so that all threads that libraries start inherit the blocked signals
        words = getattr(sys, "orig_argv", ())
        if any(word.startswith("from multiprocessing.") for word in words):
            shield.raise_()
            shield.serves_forks = any(word.startswith("from multiprocessing.forkserver") for word in words)
    after_import("multiprocessing.util", shield.raise_in_multiprocessing)


def _lead_own_group():
    try:
        os.setpgid(0, 0)
    except OSError:  # it leads a session
        pass


class _Agent:
    """The process that starts the ranks of this node, and stops them all when one exits."""

    def __init__(self, held, go):
        self._held, self._go = held, go
        self._is_holding = False
        self._last = 0
        self._own = {}
        self._signal = signal.signal

    def hold_on_requests(self):
        """Hold before any handler of the agent runs, now and after it has installed its own."""
        for descriptor in (self._held, self._go):
            os.set_inheritable(descriptor, False)
        for number in _REQUESTS:
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN and handler is not None:
                self._own[number] = handler
                self._signal(number, self._on_request)
        signal.signal = self._keeping_ours(signal.signal)
        os.write(self._held, b"\0")

    def _keeping_ours(self, original):
        from functools import wraps

        @wraps(original)
        def set_handler(signalnum, handler):
            if signalnum not in self._own:
                return original(signalnum, handler)
            before, self._own[signalnum] = self._own[signalnum], handler
            return before

        return set_handler

    def _on_request(self, number, frame):
        answer, self._last = b"", number
        try:
            os.write(self._held, bytes([number]))
            if self._is_holding:  # for an earlier one: the launcher passes this one on as well
                return
            self._is_holding = True
            answer = os.read(self._go, 1)
        except OSError:  # the launcher has exited
            pass
        self._is_holding = False
        if answer == b"x":  # all ranks have left: torchrun's own handler would print a traceback
            sys.exit(128 + self._last)
        if answer != b"f":  # to be ignored
            self._act(self._last, frame)

    def _act(self, number, frame):
        handler = self._own[number]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            self._signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class _Requests:
    """The requests that a rank handles: its handler runs once, however often the same request arrives.

    Many handlers restore the default, so that a second request ends the process; a repetition must not do
    that.
    """

    def __init__(self):
        self._own = {}
        self._received_at = {}
        self._set, self._get = signal.signal, signal.getsignal

    def handle_once(self):
        """Wrap the handlers that the script sets from now on; the script sees only its own."""
        from functools import wraps

        @wraps(self._set)
        def set_handler(signalnum, handler):
            is_wrapped = callable(handler) or self._is_same(signalnum)
            if signalnum not in _REQUESTS or not is_wrapped:
                previous = self._set(signalnum, handler)
                return self._own.pop(signalnum, previous)
            previous = self._set(signalnum, self._on_request)
            before, self._own[signalnum] = self._own.get(signalnum, previous), handler
            return before

        @wraps(self._get)
        def get_handler(signalnum):
            return self._own.get(signalnum, self._get(signalnum))

        signal.signal, signal.getsignal = set_handler, get_handler

    def _is_same(self, number):
        from time import monotonic

        return monotonic() - self._received_at.get(number, float("-inf")) < _SAME_S

    def _on_request(self, number, frame):
        from time import monotonic

        if self._is_same(number):
            return
        self._received_at[number] = monotonic()
        handler = self._own.get(number, signal.SIG_DFL)
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            self._set(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class _Shield:
    """Accepts requests to stop only from this process's parent and its rank; from anyone once the rank has
    exited.
    """

    def __init__(self, rank):
        self._rank = rank
        self._mask = None  # what it was before
        self._decides_in = 0
        self.serves_forks = False

    def raise_in_multiprocessing(self):
        """Activate it in each child of multiprocessing, before its target runs."""
        from multiprocessing import util

        util.register_after_fork(self, _Shield.raise_)

    def raise_(self):
        """Block the requests here, and decide on each in a thread."""
        import threading

        if os.getpid() in (self._decides_in, self._rank):
            return
        self.serves_forks = False
        if self._mask is None:
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SHIELDED)
        try:
            threading.Thread(target=self._decide, name="stop-requests", daemon=True).start()
        except RuntimeError:  # no further thread can be started
            self._lower()
            return
        self._decides_in = os.getpid()
        self._unblock_in_programs()

    def after_fork(self):
        """A fork leads its own group, and has no deciding thread yet.

        A worker of a fork server first imports the script, which may start threads.
        """
        _lead_own_group()
        if not self.serves_forks:
            self._lower()

    def _lower(self):
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            self._mask = None

    def _decide(self):
        while True:
            info = signal.sigwaitinfo(_SHIELDED)
            known = info.si_pid in (os.getpid(), os.getppid(), self._rank)
            if known or not os.path.exists("/proc/%d" % self._rank):
                # The current handler, which may be torch's in C, runs in this thread.
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (info.si_signo,))
                os.kill(os.getpid(), info.si_signo)
                signal.pthread_sigmask(signal.SIG_BLOCK, (info.si_signo,))

    def _unblock_in_programs(self):
        """Start programs without the blocked signals, because their parent must be able to stop them."""
        import _posixsubprocess
        import subprocess

        def unblocked(start):
            def fork_exec(*arguments):
                if self._mask is None:
                    return start(*arguments)
                mask = signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
                try:
                    return start(*arguments)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)

            fork_exec.unblocks = True
            return fork_exec

        for module, name in ((_posixsubprocess, "fork_exec"), (subprocess, "_fork_exec")):
            start = getattr(module, name, None)
            if start is not None and not hasattr(start, "unblocks"):
                setattr(module, name, unblocked(start))
