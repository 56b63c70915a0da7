"""The way of one node through a job of several: meet, train, settle, and perhaps once more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from platform_launch.errors import LaunchError
from platform_launch.node.attempt import ENDING, Attempt, Interrupted, Training
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.lines import Invitation, Settled
from platform_launch.rollcall.restarts import Run, highest_step, why_not_again
from platform_launch.supervise import Command, Outcome
from platform_launch.supervise.signals import SignalInbox

# The training finds here how often it was started again.
RESTART_COUNT = "PLATFORM_LAUNCH_RESTART_COUNT"

_TELL_S = 30.0
# A batch system's early warnings must not end a launcher that still waits for the others.
_HANDLED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Meeting:
    """Where the nodes meet, and the user's settings. ``max_restarts`` of node 0 counts for all."""

    master_addr: str
    master_port: int
    meeting_port: int
    roll_call_timeout_s: float = 600.0
    node_timeout_s: float = 12.0
    max_restarts: int = 0


@dataclass(frozen=True)
class Result:
    """How it ended. ``outcome`` is None when this node was told to end while no training was running.

    ``lines`` say what happened to the job, the headline first; ``restarts`` counts starts after the first.
    ``first_failed`` is the rank of the node whose failure the others followed, ``asked`` is set where none
    failed and a signal to one of them ended all.
    """

    exit_code: int
    outcome: Outcome | None
    lines: tuple[str, ...] = ()
    restarts: int = 0
    first_failed: int | None = None
    asked: bool = False


def run_together(
    training: Training, fingerprint: Fingerprint, meeting: Meeting, say: Callable[[str, str], None]
) -> Result:
    """Run a node's training together with those of the other nodes. Main thread only.

    Raises LaunchError when the nodes cannot start, on all of them the same; ``say(level, text)`` takes the
    lines for the user. A training that finished here keeps its exit code 0 whatever happens elsewhere.
    """
    failed: list[Run] = []
    restarts = 0
    say(
        "INFO",
        f"roll call: {fingerprint.nnodes} nodes meet at {meeting.master_addr}:{meeting.meeting_port}, "
        f"{meeting.roll_call_timeout_s:g} s at most (port: INIT_MASTER_PORT, else the one after MASTER_PORT)",
    )
    with SignalInbox(_HANDLED) as inbox:
        while True:
            try:
                attempt = Attempt(
                    _started(training, restarts),
                    _invitation(fingerprint, meeting, training, restarts),
                    inbox,
                    say,
                )
                try:
                    restarts = attempt.meet()
                    outcome = attempt.train()
                    failed.append(Run(highest_step(attempt.said.text()), outcome.duration_s))
                    settled = attempt.settle(outcome, why_not_again(failed, restarts, meeting.max_restarts))
                finally:
                    attempt.close()
            except Interrupted as interrupted:
                say("WARN", f"{interrupted.number.name}: leaving")
                return Result(128 + interrupted.number, None, restarts=restarts)
            if not settled.restart:
                return Result(
                    _exit_code(outcome, settled),
                    outcome,
                    settled.lines,
                    restarts,
                    first_failed=settled.first_failed,
                    asked=settled.exit_code == 0 and bool(settled.lines),
                )
            restarts += 1
            for line in settled.lines:
                say("ERROR", line)
            say("WARN", f"restart {restarts} of {meeting.max_restarts}: the nodes meet again")


def tell(
    fingerprint: Fingerprint,
    meeting: Meeting,
    environment: Mapping[str, str],
    say: Callable[[str, str], None],
) -> None:
    """Tell the other nodes that this one cannot start (``Fingerprint.refusal``); give up after a while."""
    say("INFO", f"telling the other nodes, {_TELL_S:g} s at most")
    hurried = replace(meeting, roll_call_timeout_s=min(_TELL_S, meeting.roll_call_timeout_s))
    training = Training(Command((), environment), Path(os.devnull), "", 0.0)
    with SignalInbox(_HANDLED) as inbox:
        attempt = Attempt(training, _invitation(fingerprint, hurried, training, 0), inbox, say)
        try:
            with suppress(LaunchError, Interrupted):
                attempt.meet()
        finally:
            attempt.close()


def _exit_code(outcome: Outcome, settled: Settled) -> int:
    finished = outcome.exit_code == 0 and outcome.stopped_by is None
    return outcome.exit_code if finished or settled.exit_code == 0 else settled.exit_code


def _started(training: Training, restarts: int) -> Training:
    command = training.command
    return replace(
        training, command=Command(command.argv, {**command.env, RESTART_COUNT: str(restarts)}, command.cwd)
    )


def _invitation(fingerprint: Fingerprint, meeting: Meeting, training: Training, restarts: int) -> Invitation:
    return Invitation(
        fingerprint=replace(fingerprint, restarts_used=restarts).to_json(),
        master_addr=meeting.master_addr,
        master_port=meeting.master_port,
        meeting_port=meeting.meeting_port,
        roll_call_timeout_s=meeting.roll_call_timeout_s,
        node_timeout_s=meeting.node_timeout_s,
        grace_s=training.grace_s,
        log_path=str(training.log_path),
    )
