"""Which event may answer: what stands behind the first cause, or what is left where no line is one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from platform_launch.why.claims import OF_THE_CODE
from platform_launch.why.collectives import Collectives
from platform_launch.why.events import FirstError, NodeEvents, Occurrence, all_events
from platform_launch.why.line import NOWHERE, Line, Location
from platform_launch.why.order import earliest
from platform_launch.why.signatures import Catalogue, Signature, SignatureRole
from platform_launch.why.steps import StepEnd

_FEW_LINES = 2
_LINES_OF_AN_ERROR = 4
_LINES_OF_A_START = 20
_LINES_OF_AN_ABORT = 3
# What `kubectl exec` says of the end of what it ran in a pod.
_OF_KUBECTL_EXEC = "command terminated with exit code "
_VAGUE = 2
# Ends of a whole job: tasks that ended with an error before it are what it waited for.
_ENDS_OF_JOBS = frozenset(("time_limit", "job_cancelled", "step_task_failed", "lsf_killed", "terminated"))
# What partners of a task suffer that ended.
SUFFERED = frozenset(
    (
        "abort", "connection_lost", "experts_exchange", "gloo_timeout", "nccl_aborted", "nccl_heartbeat",
        "nccl_watchdog", "store_lost", "store_timeout",
    )
)  # fmt: skip
# What no process goes on after.
_FATAL = frozenset(("mpi_abort", "mpi_error"))
# While they wait for it they say little.
_LINES_OF_A_STANDSTILL = 50
# Exit codes from here on are those of signals.
_FIRST_OF_SIGNALS = 128
_OF_A_CONTAINER = re.compile(r"\b(?:[Cc]ontainer|[Pp]od|[Rr]eplica)\b")
# The message of an exception goes on below its first line.
_LINES_OF_A_MESSAGE = 8


def standing_behind(first: Occurrence, events: Iterable[Occurrence]) -> Occurrence:
    """Return what explains the first cause, though written later or elsewhere; else that cause itself."""
    unknown = first.signature.id == "python_exception"
    if unknown and first.raised is not None and first.raised.type.rpartition(".")[2] in OF_THE_CODE:
        return first
    explaining = [
        event
        for event in events
        if first.signature.id in event.signature.explains
        and (event.role is SignatureRole.CAUSE or _led_to(event, first))
    ]
    cause = max(explaining, key=lambda event: event.signature.specificity, default=first)
    cause.role = SignatureRole.CAUSE
    return cause


def _led_to(suspect: Occurrence, first: Occurrence) -> bool:
    """Tell whether a suspect that explains a cause stands above it."""
    above = suspect.log == first.log and suspect.start < first.start
    return suspect.role is SignatureRole.SUSPECT and not suspect.mention and above


def place_told_below(cause: Occurrence, events: Iterable[Occurrence]) -> Location:
    """Return where a process ended that the cause does not name, by what stands right below it.

    So C++ aborts below its own message, and mpirun loses the daemon that a killed `kubectl exec` ran.
    """
    below = [e for e in events if e.log == cause.log and 0 < e.start - cause.number <= _LINES_OF_AN_ABORT]
    if cause.shown.startswith(_OF_KUBECTL_EXEC):
        places = {where for e in below if e.signature.id == "mpi_daemon_lost" for where in e.wheres}
    else:
        places = {e.where for e in below if e.signature.id == "abort"}
    return places.pop() if len(places) == 1 else NOWHERE


def broken_before(end: Occurrence, events: Iterable[Occurrence]) -> Occurrence | None:
    """Return the error of MPI that ended a process, where the others then were killed or waited."""
    if end.signature.id not in _ENDS_OF_JOBS | {"killed"}:
        return None
    fatal = [e for e in events if e.signature.id in _FATAL and e.log == end.log and e.start < end.start]
    return min(fatal, key=lambda event: event.start, default=None)


def cancelled_before(first: Occurrence, nodes: Sequence[NodeEvents]) -> Occurrence | None:
    """Return the cancellation of a job that stands above an exception which may only come of it.

    Slurm's daemons say it with the node. A task that ended with an error above it was the reason.
    """
    vague = first.signature.id == "python_exception" and first.raised is not None
    if not vague or first.raised is None or first.raised.type.rpartition(".")[2] in OF_THE_CODE:
        return None
    told = [one for one in nodes if one.log == first.log]
    above = [
        event
        for one in told
        for event in one.episode.of_role(SignatureRole.CONSEQUENCE)
        if event.start < first.start
    ]
    failed = any(s.exit_code and s.line.number < first.start for one in told for s in one.episode.steps)
    if failed or any(event.signature.id != "job_cancelled" for event in above):
        return None
    return next((event for event in above if any(where.host for where in event.wheres)), None)


def is_sequel(cause: Occurrence, events: Iterable[Occurrence]) -> bool:
    """Tell whether a cause only says how a process ended that had suffered a consequence before."""
    return any(_is_sequel_of(cause, event) for event in events)


def _is_sequel_of(cause: Occurrence, event: Occurrence) -> bool:
    # A line below that names nobody goes on with what stands above it.
    goes_on = event.start == cause.number + 1 and NOWHERE in (cause.where, event.where)
    same_writer = cause.raised is not None or goes_on or (cause.where == event.where != NOWHERE)
    goes_on_until = cause.number + _LINES_OF_A_MESSAGE if same_writer else cause.start
    return (
        event.role in (SignatureRole.CONSEQUENCE, SignatureRole.SUMMARY)
        and cause.signature.id in event.signature.explains
        and event.log == cause.log
        and event.start < goes_on_until
        and not _are_apart(cause, event)
    )


def _are_apart(one: Occurrence, other: Occurrence) -> bool:
    """Tell whether two things are known to have happened to different ranks."""
    ranks = [{where.rank for where in event.wheres} - {None} for event in (one, other)]
    return bool(ranks[0] and ranks[1]) and ranks[0].isdisjoint(ranks[1])


def ended_before(
    end: Occurrence | None, nodes: Sequence[NodeEvents], catalogue: Catalogue
) -> Occurrence | None:
    """Return the first task that ended with an error, where only what followed is known beside.

    That is the end of the job, or what others suffered who waited for it.
    """
    if end is not None and end.signature.id not in _ENDS_OF_JOBS | SUFFERED | {"exited_first"}:
        return None
    for node_events in nodes:
        for step in node_events.episode.steps:
            above = end is not None and end.log == node_events.log and step.line.number > end.start
            later = above and end is not None and not _is_said_by_srun_alone(end)
            if step.exit_code <= 0 or later:
                continue
            suffered = end is not None and end.signature.id in SUFFERED
            if suffered and not _had_no_part(step, node_events, nodes):
                continue
            signature = catalogue["exited_first"]
            if end is None and node_events.first_error is not None and node_events.first_error.clear:
                continue
            event = _exited(step.line, step.exit_code, step.places, node_events, signature)
            event.where = event.where.filled(_root_on(event.where.host, node_events))
            return event
    return None


def failed_before(killed: Occurrence, nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return the process that ended with an error before a container was killed, where nobody else suffered.

    Whoever runs the containers of a job then ends those that are left.
    """
    suffered = (event.signature.id for event in all_events(nodes))
    if killed.signature.id != "killed" or not _OF_A_CONTAINER.search(killed.shown) or SUFFERED & {*suffered}:
        return None
    for node_events in nodes:
        episode = node_events.episode
        ends = [(one.line, one.exit_code, one.places) for one in episode.steps]
        ends += [(one.line, one.exit_code, (one.where,)) for one in episode.endings]
        for line, code, places in sorted(ends, key=lambda end: end[0].number):
            before = (
                killed.log == node_events.log and 0 < killed.start - line.number <= _LINES_OF_A_STANDSTILL
            )
            if before and 0 < code < _FIRST_OF_SIGNALS:
                return _exited(line, code, places, node_events, catalogue["exited_first"])
    return None


def _exited(
    line: Line, code: int, places: Sequence[Location], told_by: NodeEvents, signature: Signature
) -> Occurrence:
    event = Occurrence(
        signature, signature.role, told_by.log,
        line.number, line.number, line.shown,
        places[0] if places else NOWHERE, details={"exit code": str(code)},
    )  # fmt: skip
    event.wheres |= set(places)
    return event


def _is_said_by_srun_alone(end: Occurrence) -> bool:
    """Tell whether a step was ended by srun, as it does by itself where a task failed.

    Where someone cancelled it, Slurm's daemons say so too, and on which node.
    """
    if end.signature.id == "step_task_failed":
        return True
    return end.signature.id == "job_cancelled" and not any(where.host for where in end.wheres)


def _had_no_part(step: StepEnd, told_by: NodeEvents, nodes: Sequence[NodeEvents]) -> bool:
    """Tell whether a task ended before any other suffered, and is none of those that then did."""
    if any(node_events.episode.endings for node_events in nodes):
        return False  # a launcher within the task tells more
    suffered = [event for one in nodes for event in one.episode.of_role(SignatureRole.CONSEQUENCE)]
    later = [event.start - step.line.number for event in suffered if event.log == told_by.log]
    if later and not 0 <= min(later) <= _LINES_OF_A_STANDSTILL:
        return False  # they suffered before, or went on well without it: a step of before the training
    places = [where for event in suffered for where in event.wheres if where != NOWHERE]
    return not any(_may_be(task, where) for task in step.places for where in places)


def _may_be(task: Location, where: Location) -> bool:
    """Tell whether a process may be a task of the scheduler, which is a rank where it started it itself."""
    numbers = {where.task, where.rank} - {None}
    apart = None not in (task.host, where.host) and task.host != where.host
    return not apart and (task.task in numbers if numbers else task.host == where.host)


def caught_last(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return an exception that was caught, or told without a traceback, right above its process's end.

    Unless others suffered before.
    """
    for node_events in nodes:
        episode = node_events.episode
        ends = [step.line.number for step in episode.steps if step.exit_code > 0 and not step.was_cancelled]
        ends += [ending.line.number for ending in episode.endings if ending.exit_code > 0]
        suffered = min((e.start for e in episode.of_role(SignatureRole.CONSEQUENCE)), default=math.inf)
        for event in episode.of_role(SignatureRole.SUSPECT):
            raised = event.raised
            if raised is None or not raised.type or event.mention or event.start >= suffered:
                continue
            if any(0 < end - event.number <= _FEW_LINES for end in ends):
                if event.signature.id == "caught_exception":
                    event.signature, event.role = catalogue["python_exception"], SignatureRole.CAUSE
                elif raised.has_frames:
                    event.role = SignatureRole.CAUSE
                return event
    return None


def _root_on(host: str | None, node_events: NodeEvents) -> Location:
    """Return the rank that torchrun on a host saw end first, if it is one."""
    roots = {
        Location(rank=one.where.rank)
        for one in node_events.episode.endings
        if one.is_root and (one.where.host or "").partition(".")[0] == host
    }
    return roots.pop() if len(roots) == 1 else NOWHERE


def left_by_itself(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return the rank that torchrun saw end first, with a code that no exception gives, and without a word.

    Beside it there are only partners that lost their connections to it.
    """
    for node_events in nodes:
        roots = [one for one in node_events.episode.endings if one.is_root and one.where.rank is not None]
        if len({root.where.rank for root in roots}) != 1 or roots[0].exit_code <= 1:
            continue
        root, signature = roots[0], catalogue["rank_exited"]
        return Occurrence(
            signature, SignatureRole.CAUSE, node_events.log,
            root.line.number, root.line.number, root.line.shown,
            root.where, details={"exit code": str(root.exit_code)},
        )  # fmt: skip
    return None


def ended_alike(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return how all processes ended that torchrun lists, where what it says of the first one is cut off."""
    endings = [(one, ending) for one in nodes for ending in one.episode.endings]
    codes = {ending.exit_code for _, ending in endings}
    signature = catalogue.of_exit_code(codes.pop()) if len(codes) == 1 else None
    if signature is None or any(ending.is_root for _, ending in endings):
        return None
    node_events, first = endings[0]
    event = Occurrence(
        signature, signature.role, node_events.log,
        first.line.number, first.line.number, first.line.shown, first.where,
    )  # fmt: skip
    event.wheres |= {ending.where for _, ending in endings}
    return event


def never_met(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return the roll call of processes that was not complete, where the logs end with it.

    Only rank 0 says that all came: without its log nobody knows.
    """
    table = Collectives()
    for node_events in nodes:
        table.merge(node_events.collectives)
    if 0 not in table.members or table.absent()[1] is None:
        return None
    called = [(one, met) for one in nodes if (met := one.collectives.members_line) is not None]
    if any(one.lines_read - met.number > _LINES_OF_A_START for one, met in called):
        return None
    signature, (first, met) = catalogue["barrier_absent"], called[0]
    return Occurrence(signature, signature.role, first.log, met.number, met.number, met.shown, NOWHERE)


def best_consequence(events: Sequence[Occurrence], offsets: Mapping[int, float]) -> Occurrence | None:
    """Return the consequence that tells most, or the suspect that explains one that was seen."""
    consequences = [event for event in events if event.role is SignatureRole.CONSEQUENCE]
    seen = {event.signature.id for event in consequences}
    suspects = [event for event in events if event.role is SignatureRole.SUSPECT]
    explaining = [
        event
        for event in suspects
        if seen.intersection(event.signature.explains) and not is_sequel(event, events)
    ]
    for group in (explaining, consequences):
        if group:
            answering = [event for event in group if not _ended_after_another(event, group)]
            best = max(event.signature.specificity for event in answering)
            chosen = earliest([e for e in answering if e.signature.specificity == best], offsets)[0]
            if chosen.where == NOWHERE:
                chosen.where = next((e.where for e in events if _is_sequel_of(e, chosen)), NOWHERE)
            return _reason_of(chosen, consequences)
    return None


def _ended_after_another(event: Occurrence, others: Iterable[Occurrence]) -> bool:
    """Tell whether a job was only ended after something else had gone wrong, as srun does of itself."""
    return event.signature.id in _ENDS_OF_JOBS and any(
        other.log == event.log and other.start < event.start
        for other in others
        if other.signature.id not in _ENDS_OF_JOBS | SUFFERED
    )


def _reason_of(chosen: Occurrence, consequences: Iterable[Occurrence]) -> Occurrence:
    """Return the reason that an error's own message ends with, if it has one; else the error."""
    for reason in consequences:
        within = 0 < reason.number - chosen.number <= _LINES_OF_A_MESSAGE and reason.log == chosen.log
        together = NOWHERE in (chosen.where, reason.where) or chosen.where == reason.where
        if within and together and chosen.signature.id in reason.signature.explains:
            reason.where = reason.where.filled(chosen.where)
            return reason
    return chosen


def best_suspect(
    suspects: Sequence[Occurrence],
    nodes: Sequence[NodeEvents],
    offsets: Mapping[int, float],
    catalogue: Catalogue,
) -> Occurrence | None:
    """Return the suspect that answers where there is nothing else."""
    clear = any(_is_clear(node_events) for node_events in nodes)
    ended = any(node_events.episode.endings or node_events.episode.steps for node_events in nodes)
    printed = [e for e in suspects if e.raised is not None and e.raised.type and not e.mention]
    last = [e for e in printed if _lines_after(nodes, e) <= _FEW_LINES]
    if last or (printed and ended):
        chosen = earliest(last or printed, offsets)[0]
        if chosen.signature.id == "caught_exception":
            chosen.signature = catalogue["python_exception"]
        well = any(node_events.success_said for node_events in nodes)
        chosen.role = SignatureRole.CAUSE if last and not well else SignatureRole.SUSPECT
        return chosen
    unmentioned = [e for e in suspects if not e.mention and e.signature.id != "caught_exception"]
    likely = [e for e in unmentioned if e.signature.specificity >= _VAGUE]
    if likely and ended and not clear:
        return earliest(likely, offsets)[0]
    if clear or ended:
        return next((e for e in suspects if e.signature.id == "traceback_cut"), None) if not clear else None
    # Nothing tells of an end: what is vague or only mentioned must be the last that the log says.
    plain = [e for e in suspects if not e.mention and (e.signature.specificity >= _VAGUE or e in printed)]
    at_the_end = [event for event in suspects if _lines_after(nodes, event) < _FEW_LINES]
    return _warned_above(earliest(plain or at_the_end, offsets)[0], suspects) if plain or at_the_end else None


def _warned_above(chosen: Occurrence, suspects: Iterable[Occurrence]) -> Occurrence:
    """Return what is said close above a traceback that was cut off, and tells more; else what was chosen."""
    if chosen.signature.id != "traceback_cut":
        return chosen
    above = {chosen.start - e.last: e for e in suspects if e.log == chosen.log and e.mention}
    close = (e for distance, e in above.items() if 0 < distance <= _reach_of(e))
    return next(close, chosen)


def _reach_of(said: Occurrence) -> int:
    """Return within how many lines a traceback follows from what is said, a warning or the error itself."""
    return _LINES_OF_AN_ERROR if said.signature.role is SignatureRole.CAUSE else 1


def _lines_after(nodes: Sequence[NodeEvents], event: Occurrence) -> int:
    return min((s.lines_read - event.last for s in nodes if event in s.episode.events.values()), default=0)


def _ends_at(suspect: Occurrence, error: FirstError) -> bool:
    """Tell whether a line is only the rest of a traceback that was cut off there."""
    return suspect.signature.id == "traceback_cut" and 0 <= error.number - suspect.number <= 1


def _is_clear(node_events: NodeEvents) -> bool:
    """Tell whether a line of its own looks like the failure, not the one that introduces a suspect."""
    error = node_events.first_error
    if error is None or not error.clear:
        return False
    suspects = node_events.episode.of_role(SignatureRole.SUSPECT)
    return not any(abs(one.start - error.number) <= 1 or _ends_at(one, error) for one in suspects)
