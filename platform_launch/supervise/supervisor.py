"""One supervised command, from start to exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field, replace
from pathlib import Path

from platform_launch.console import log_line, terminal_line
from platform_launch.console.log import LogFile
from platform_launch.console.outlet import Outlet
from platform_launch.events import Event, event
from platform_launch.sentences import Sentence
from platform_launch.supervise.channel import Channel, Tee, imitate_size, open_like
from platform_launch.supervise.guarding import Guard
from platform_launch.supervise.holding import AgentHold
from platform_launch.supervise.processes import Command, fill_closed_descriptors, shell_code, signal_name
from platform_launch.supervise.signals import ENDING, WARNING, SignalInbox
from platform_launch.supervise.watch import DEFAULT_GRACE_S, Watch
from platform_launch.values import dataclass

_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    ``exit_code`` is the command's own, or 128 plus the number of the ``signal`` that ended it. If a signal
    requested the stop, here or on another node, and the command then returned 1, it is 128 plus that signal
    too: torchrun, like any Python program, responds to a signal with a traceback and 1, which a scheduler
    would count as a failure. This applies to USR1 and USR2 only if the command returns the code of a signal,
    or if its environment lets torchrun handle them, which then exits. Any other command may continue after
    them, and its 1 is a failure of its own.
    ``log_path`` is None if there is no log or it was lost. ``stopped_by`` is the signal's name or the reason
    given to :meth:`Supervisor.stop`, with its ``stop_sentence``; None for a command that had returned 0 by
    then. ``killed`` are the processes that only SIGKILL could end, ``tail`` is the end of the output.
    """

    exit_code: int
    signal: str | None
    duration_s: float
    log_path: Path | None
    stopped_by: str | None
    killed: tuple[int, ...]
    tail: bytes = field(default=b"", repr=False)
    stop_sentence: Sentence | None = None


class Supervisor:
    """Runs one command: forwards signals, reaps orphans, copies output, ends leftovers. Works as PID 1 too.

    TERM, INT, HUP, QUIT, USR1 and USR2 are forwarded to the command's process group. The first four start
    ``grace_s``, after which the whole tree is killed; a second Ctrl-C kills it at once. ``prefix`` precedes
    each line of output. A log file that cannot be written is reported and given up; beyond
    ``log_limit_bytes`` (0: no limit), only its head and tail are kept. For one run.

    Callbacks: ``on_event(event)`` for each event, ``on_start(pid)``, ``on_ending(reason)`` as soon as a
    signal or :meth:`stop` requests the stop, ``on_exit(code)`` when the command has exited, while its
    leftovers are still being ended. For ``on_stop_requested``, ``inbox`` and ``spread_s`` see :class:`Watch`.
    ``temporary`` folders are removed if this process is killed. ``is_agent``: the command starts the ranks of
    this node, and is held while they save (see :mod:`holding`). Events that ``is_shown`` rejects, and with
    ``folds`` what :mod:`tracebacks` leaves out, go to the log only.
    """

    def __init__(
        self,
        command: Command,
        *,
        log_path: Path | None = None,
        prefix: str = "",
        grace_s: float = DEFAULT_GRACE_S,
        log_limit_bytes: int = 0,
        on_event: Callable[[Event], None] = lambda _event: None,
        on_start: Callable[[int], None] = lambda _pid: None,
        on_ending: Callable[[str], None] = lambda _reason: None,
        on_exit: Callable[[int], None] = lambda _code: None,
        on_stop_requested: Callable[[signal.Signals], None] = lambda _number: None,
        inbox: SignalInbox | None = None,
        temporary: Sequence[Path] = (),
        is_agent: bool = False,
        spread_s: float = 0.0,
        is_shown: Callable[[Event], bool] = lambda _event: True,
        folds: bool = False,
    ) -> None:
        self._command = command
        self._folds = folds
        self._is_shown = is_shown
        self._prefix = prefix
        self._log = LogFile(log_path, self._report, most_bytes=log_limit_bytes)
        self._code = -int(signal.SIGKILL)  # applies if even SIGKILL does not end it
        self._finished = False
        self._tees: dict[int, Tee] = {}
        self._terminals: dict[int, int] = {}
        self._on_event = on_event
        self._on_start = on_start
        self._on_ending, self._on_exit = on_ending, on_exit
        self._guard = Guard(command.env, temporary)
        self._hold = AgentHold(grace_s) if is_agent else None
        self._watch = Watch(
            grace_s=grace_s,
            report=self._report,
            ended=self._on_end,
            resized=self._on_resize,
            ending=on_ending,
            inbox=inbox,
            hold=self._hold,
            on_stop_requested=on_stop_requested,
            spread_s=spread_s,
        )

    @property
    def stopped_by(self) -> str | None:
        """What requested the stop, as in :class:`Outcome`; None so far."""
        return self._watch.stopped_by

    @property
    def stop_sentence(self) -> Sentence | None:
        """The reason given to :meth:`stop`, as in :class:`Outcome`."""
        return self._watch.stop_sentence

    @property
    def stop_signal(self) -> str:
        """The name of the signal that requested the stop, here or on another node; empty if none did."""
        return self._watch.stop_signal

    def stop(
        self,
        reason: str,
        grace_s: float | None = None,
        signal_name: str = "",
        sentence: Sentence | None = None,
    ) -> None:
        """Stop the command as SIGTERM would. From any thread, before and during the run.

        ``grace_s`` can shorten the grace time; ``signal_name`` is the signal that requested it on another
        node; ``sentence`` is the reason for programs, ``reason`` for people.
        """
        self._watch.stop(reason, grace_s, signal_name, sentence)

    def warn(self, number: signal.Signals) -> None:
        """Pass on a warning that was not a signal to this process. From any thread."""
        self.do(lambda: self._watch.warn(number))

    def report(self, event: Event) -> None:
        """Write an event to the command's output. From any thread during the run."""
        self.do(lambda: self._report(event))

    def do(self, action: Callable[[], None]) -> None:
        """Run an action in the thread that runs the command. From any thread."""
        self._watch.do(action)

    def run(self) -> Outcome:
        """Run the command to its end. Main thread only; the process must wait for no children of its own.

        Raises LaunchError when no process can be started at all; a program that cannot be executed is exit
        code 127 or 126, as in a shell.
        """
        began = time.monotonic()
        _flush_own_output()
        fill_closed_descriptors()
        with self._watch as watch, ExitStack() as guarded:
            try:
                self._start(watch, guarded)
                watch.wait()
            finally:
                self._log.close()
                if self._hold is not None:
                    self._hold.close()
                for tee in self._tees.values():
                    tee.outlet.close()
        return Outcome(
            exit_code=_stopped_code(shell_code(self._code), watch.stop_signal),
            signal=signal_name(-self._code) if self._code < 0 else None,
            duration_s=time.monotonic() - began,
            log_path=self._log.path,
            stopped_by=None if self._finished else watch.stopped_by,
            killed=tuple(watch.killed),
            tail=self._log.tail,
            stop_sentence=None if self._finished else watch.stop_sentence,
        )

    @property
    def tail(self) -> bytes:
        """The end of the command's output so far, as in the log, even without a log."""
        return self._log.tail

    def _start(self, watch: Watch, guarded: ExitStack) -> None:
        """Open a channel for each of our two descriptors, one if both are the same file, and start."""
        writing: dict[int, int] = {}
        try:
            for fd in (_STDOUT,) if os.path.sameopenfile(_STDOUT, _STDERR) else (_STDOUT, _STDERR):
                reading, writing[fd] = open_like(fd, len(self._prefix))
                self._terminals[fd] = reading
                fold = self._line_of(fd) if self._folds else None
                outlet, many = Outlet(fd, self._on_lost), self._hold is not None
                self._tees[fd] = Tee(outlet, self._log, self._prefix, fold, many=many)
                watch.follow(Channel(reading, self._tees[fd]))
            self._log.open()
            variables = dict(self._guard.variables)
            descriptors = {_STDOUT: writing[_STDOUT], _STDERR: writing.get(_STDERR, writing[_STDOUT])}
            if self._hold is not None:
                its_variables, its_descriptors = self._hold.open()
                variables |= its_variables
                descriptors |= its_descriptors
            command = replace(self._command, env={**self._command.env, **variables})
            pid = watch.start(command, descriptors)
            if self._hold is not None:
                self._hold.started(pid)
            guarded.enter_context(self._guard)  # now: both are Python, and load at the same time
            watch.leave_alone(self._guard.pid)
            self._guard.watch(pid)
            self._on_start(pid)
        finally:
            for fd in writing.values():
                os.close(fd)

    def _report(self, event: Event) -> None:
        """Write an event to the output and to the log, without waiting for a reader."""
        fd = max(self._tees)
        kept = log_line(event)
        if self._is_shown(event):
            self._tees[fd].write_line(self._line_of(fd)(event), kept)
        else:
            self._tees[fd].log_line(kept)
        self._on_event(event)

    @staticmethod
    def _line_of(fd: int) -> Callable[[Event], str]:
        return terminal_line if os.isatty(fd) else log_line

    def _on_lost(self, error: OSError) -> None:
        place = f"it goes on in {self._log.path}" if self._log.path else "the training goes on without it"
        self._report(event("output-lost", problem=error.strerror, consequence=place))

    def _on_end(self, _pid: int, code: int) -> None:
        self._code = code
        self._finished = code == 0 and self._watch.stopped_by is None
        warning, watch = self._watch.warned_by, self._watch
        if watch.stopped_by is None and warning and _answers(code, warning, self._command):
            watch.stopped_by = watch.stop_signal = warning.name
            self._on_ending(warning.name)
        self._on_exit(_stopped_code(shell_code(code), watch.stop_signal))

    def _on_resize(self) -> None:
        for fd, ours in self._terminals.items():
            imitate_size(fd, ours, len(self._prefix))


def _flush_own_output() -> None:
    """Flush what was printed before the command's output."""
    for file in (sys.stdout, sys.stderr):
        if file is not None:  # started with the descriptor closed
            with suppress(OSError, ValueError):
                file.flush()


def _answers(code: int, warning: signal.Signals, command: Command) -> bool:
    """Return whether a command exited because of a warning: with a signal's code, or as torchrun does."""
    ends_torchrun = warning.name in command.env.get("PET_SIGNALS_TO_HANDLE", "").split(",")
    return code - 128 in ENDING | WARNING or (code == 1 and ends_torchrun)


def _stopped_code(code: int, stop_signal: str) -> int:
    """Return 128 + the signal that requested the stop if a command only returned 1."""
    if code == 1 and stop_signal in signal.Signals.__members__:
        return 128 + signal.Signals[stop_signal]
    return code
