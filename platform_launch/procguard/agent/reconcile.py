"""Decides a worker's next step and report from the order and the actual state. Pure.

Equal input always gives equal output, so nothing depends on a single message or on the agent being alive when
it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.wire import (
    LONGEST_TEXT,
    GpuReport,
    OrderAction,
    WorkerOrder,
    WorkerReport,
    WorkerState,
)
from platform_launch.sentences import Sentence, sentence
from platform_launch.why.answer.verdict import Verdict


class Stage(Enum):
    """How far a run has come, by its records."""

    READY = "ready"
    STALE = "stale"
    """It was ready before a reboot; the program may be gone, the port taken."""
    STARTING = "starting"
    """The start is recorded, but its supervisor has not answered yet."""
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"
    """It was started, and its supervisor disappeared without recording the end."""


@dataclass(frozen=True)
class WorkerRun:
    """A worker's newest run. ``ending``: a stop has been requested."""

    generation: int
    stage: Stage
    ending: bool = False
    pid: int | None = None
    exit_code: int | None = None
    ended_s_ago: float | None = None
    stop_requested: bool = False
    reason: Sentence | None = None
    verdict: str = ""
    why: Verdict | None = None
    cause_line: int | None = None
    log_bytes: int = 0

    @property
    def alive(self) -> bool:
        """Whether it may have a process."""
        return self.stage in (Stage.STARTING, Stage.RUNNING)


@dataclass(frozen=True)
class StartRefusal:
    """Why this generation cannot start here."""

    generation: int
    reason: Sentence


class NextAction(Enum):
    """What an agent does next."""

    NOTHING = "nothing"
    END = "end"
    """Ask the run to stop."""
    WITHDRAW = "withdraw"
    """Discard its readiness."""
    CHECK = "check"
    """Check whether the order's generation could start; record readiness, or refuse."""
    START = "start"


def decide(
    order: WorkerOrder | None, run: WorkerRun | None, *, leftovers: bool = False, leaving: bool = False
) -> NextAction:
    """Return the next step.

    ``leftovers``: processes of an earlier run are still being ended. ``leaving``: this agent is stopping its
    runs before it exits. Without an order nothing changes: the server has not answered yet.
    """
    alive = run is not None and run.alive
    if leaving:
        return NextAction.END if alive else NextAction.NOTHING
    if order is None:
        return NextAction.NOTHING
    if order.action is OrderAction.STOP:
        return _stop(order, run)
    known = -1 if run is None else run.generation
    if known > order.generation:  # an outdated order; the newer run stays
        return NextAction.NOTHING
    if known < order.generation:
        if alive:
            return NextAction.END
        # RUN without readiness is never a start: the report is "lost".
        return (
            NextAction.CHECK if order.action is OrderAction.PREPARE and not leftovers else NextAction.NOTHING
        )
    assert run is not None
    if order.action is OrderAction.PREPARE:
        return NextAction.CHECK if run.stage is Stage.STALE and not leftovers else NextAction.NOTHING
    return NextAction.START if run.stage is Stage.READY else NextAction.NOTHING


def _stop(order: WorkerOrder, run: WorkerRun | None) -> NextAction:
    if run is None or run.generation > order.generation:
        return NextAction.NOTHING
    if run.alive:
        return NextAction.END
    return NextAction.WITHDRAW if run.stage in (Stage.READY, Stage.STALE) else NextAction.NOTHING


_STATES = {
    Stage.READY: WorkerState.READY,
    Stage.STALE: WorkerState.IDLE,
    Stage.STARTING: WorkerState.RUNNING,
    Stage.RUNNING: WorkerState.RUNNING,
    Stage.EXITED: WorkerState.EXITED,
    Stage.LOST: WorkerState.LOST,
}


def report(
    number: int,
    order: WorkerOrder | None,
    run: WorkerRun | None,
    *,
    refusal: StartRefusal | None = None,
    leftovers: Sequence[int] = (),
    gpus: Sequence[GpuReport] = (),
) -> WorkerReport:
    """Return the report for the server. ``leftovers`` are process ids of runs without a supervisor."""
    held = tuple(gpus)
    if run is not None and run.alive:
        return _about(run, WorkerState.STOPPING if run.ending else _STATES[run.stage], number, held)
    if leftovers:
        return WorkerReport(
            number=number,
            state=WorkerState.STOPPING,
            generation=run.generation if run else 0,
            pid=min(leftovers),
            **_because(sentence("leftovers")),
            log_bytes=run.log_bytes if run else 0,
            gpus=held,
        )
    if order is not None and (answer := _cannot(order, run, refusal)):
        state, reason = answer
        about = _because(reason)
        return WorkerReport(number=number, state=state, generation=order.generation, gpus=held, **about)
    if run is None:
        return WorkerReport(number=number, state=WorkerState.IDLE, gpus=held)
    return _about(run, _STATES[run.stage], number, held)


def _cannot(
    order: WorkerOrder, run: WorkerRun | None, refusal: StartRefusal | None
) -> tuple[WorkerState, Sentence] | None:
    """Return the answer to an order for a generation that does not run and never will."""
    known = -1 if run is None else run.generation
    stale = run is not None and known == order.generation and run.stage is Stage.STALE
    never_ready = known < order.generation or stale
    if (
        order.action is not OrderAction.STOP
        and never_ready
        and refusal
        and refusal.generation == order.generation
    ):
        return WorkerState.REFUSED, refusal.reason
    if order.action is OrderAction.RUN and stale:
        return WorkerState.LOST, sentence("lost-rebooted")
    if order.action is OrderAction.RUN and known < order.generation:
        return WorkerState.LOST, sentence("lost-not-ready")
    return None


def _because(reason: Sentence | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": english(reason)[:LONGEST_TEXT], "reason_sentence": reason}


def _about(run: WorkerRun, state: WorkerState, number: int, gpus: tuple[GpuReport, ...]) -> WorkerReport:
    return WorkerReport(
        number=number,
        state=state,
        generation=run.generation,
        pid=run.pid if run.alive else None,
        exit_code=run.exit_code,
        ended_s_ago=run.ended_s_ago,
        stop_requested=run.stop_requested,
        **_because(run.reason),
        verdict=run.verdict,
        why=run.why,
        cause_line=run.cause_line,
        log_bytes=run.log_bytes,
        gpus=gpus,
    )
