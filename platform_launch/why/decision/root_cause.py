"""What stands behind the first cause: what explains it, and whose earlier end the others only followed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from platform_launch.why.lines.line import NOWHERE, Line, Location
from platform_launch.why.messages.signatures import Catalogue, Signature, SignatureRole, SignatureTrait
from platform_launch.why.reading.claims import OF_THE_CODE
from platform_launch.why.reading.endings import FIRST_OF_SIGNALS
from platform_launch.why.reading.events import NodeEvents, Occurrence, all_events
from platform_launch.why.reading.steps import StepEnd

# The message of an exception goes on below its first line.
LINES_OF_A_MESSAGE = 8
# What MPI ends a process with, where it says which.
_OF_MPI = frozenset(("mpi_abort", "mpi_error"))
# While they wait for it they say little.
_LINES_OF_A_STANDSTILL = 50
_LINES_OF_AN_ABORT = 3
_OF_AN_EXCEPTION = 1
_LINES_OF_A_STACK = 16
# The end of a step from outside, as Slurm and srun tell it.
_CANCELLED = frozenset(("job_cancelled", "srun_ended"))
# What `kubectl exec` says of the end of what it ran in a pod.
_OF_KUBECTL_EXEC = "command terminated with exit code "
# What hydra says of a process that a signal ended, in a report of its own.
_OF_HYDRA = "KILLED BY SIGNAL: "
# What a shell says of a line of a script.
_LINE_OF_A_SCRIPT = re.compile(r"(\S+): line \d+: ")
_OF_A_CONTAINER = re.compile(r"\b(?:[Cc]ontainer|[Pp]od|[Rr]eplica)\b")


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
    """Tell whether a suspect that explains a cause stands above it.

    What prepares a job is said mildly also where all below then runs in another environment, and a hang too,
    and what a script could not read before it ended.
    """
    above = suspect.log == first.log and suspect.start < first.start and not is_over(suspect, first)
    heavy = not suspect.mention or suspect.signature.has(SignatureTrait.PREPARES, SignatureTrait.WARNS)
    return suspect.role is SignatureRole.SUSPECT and (heavy or _of_one_script(suspect, first)) and above


def _of_one_script(one: Occurrence, other: Occurrence) -> bool:
    """Tell whether a shell says two things of lines of the same script."""
    scripts = [_LINE_OF_A_SCRIPT.match(event.shown) for event in (one, other)]
    return scripts[0] is not None and scripts[1] is not None and scripts[0][1] == scripts[1][1]


def is_over(suspect: Occurrence, end: Occurrence) -> bool:
    """Tell whether a hang, of which programs warn again and again, was last told of long before an end."""
    told = suspect.signature.has(SignatureTrait.WARNS) and suspect.log == end.log
    return told and end.start - suspect.last > _LINES_OF_A_STANDSTILL


def place_told_below(cause: Occurrence, events: Iterable[Occurrence]) -> Location:
    """Return where a cause was, of one that names no process also by what stands right below it.

    So C++ aborts below its own message, MPI says which rank an error of the network or an assertion ended,
    mpirun loses the daemon that a killed `kubectl exec` ran, and Slurm requeues a job whose start a node
    refused.
    """
    if cause.where != Location(host=cause.where.host):
        return cause.where
    below = [e for e in events if e.log == cause.log and 0 < e.start - cause.number <= _LINES_OF_A_STACK]
    if cause.shown.startswith(_OF_KUBECTL_EXEC):
        places = {where for e in below if e.signature.id == "mpi_daemon_lost" for where in e.wheres}
    else:
        requeued = {"preempted": _LINES_OF_AN_ABORT} if cause.signature.id == "slurm_credential" else {}
        close = {"abort": _LINES_OF_AN_ABORT, **requeued, **dict.fromkeys(_OF_MPI, _LINES_OF_A_STACK)}
        places = {e.where for e in below if e.start - cause.number <= close.get(e.signature.id, 0)}
    places.discard(NOWHERE)
    place = places.pop() if len(places) == 1 else NOWHERE
    return cause.where.filled(place) if place.host in (None, cause.where.host or place.host) else cause.where


def broken_before(end: Occurrence, events: Iterable[Occurrence]) -> Occurrence | None:
    """Return the error of MPI that ended a process, where the others then were killed or waited."""
    if not end.signature.has(SignatureTrait.ENDS_JOB) and end.signature.id != "killed":
        return None
    fatal = [e for e in events if e.signature.id in _OF_MPI and e.log == end.log and e.start < end.start]
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
    if failed or any(event.signature.id not in _CANCELLED for event in above):
        return None
    return next((event for event in above if any(where.host for where in event.wheres)), None)


def is_sequel(cause: Occurrence, events: Iterable[Occurrence]) -> bool:
    """Tell whether a cause only says how a process ended that had suffered a consequence before."""
    return any(is_sequel_of(cause, event) for event in events)


def is_sequel_of(cause: Occurrence, event: Occurrence) -> bool:
    """Tell whether a cause only says how a process ended that had suffered that event."""
    # A line below that names nobody goes on with what stands above it.
    goes_on = event.start == cause.number + 1 and NOWHERE in (cause.where, event.where)
    same_writer = cause.raised is not None or goes_on or (cause.where == event.where != NOWHERE)
    goes_on_until = cause.number + LINES_OF_A_MESSAGE if same_writer else cause.start
    return (
        event.role in (SignatureRole.CONSEQUENCE, SignatureRole.SUMMARY)
        and cause.signature.id in event.signature.explains
        and event.log == cause.log
        and (event.start < goes_on_until or wrote(cause, event))
        and not _are_apart(cause, event)
    )


def wrote(end: Occurrence, event: Occurrence) -> bool:
    """Tell whether the process that ended wrote an event's line, as Ray's prefix says, which comes late."""
    return "pid" in end.details and any(f" pid={end.details['pid']}{mark}" in event.shown for mark in "),")


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
    traits = SignatureTrait.ENDS_JOB, SignatureTrait.SUFFERED
    if end is not None and end.signature.id != "exited_first" and not end.signature.has(*traits):
        return None
    for node_events in nodes:
        for step in node_events.episode.steps:
            above = end is not None and end.log == node_events.log and step.line.number > end.start
            later = above and end is not None and not _is_said_by_srun_alone(end)
            suffered = end is not None and end.signature.has(SignatureTrait.SUFFERED)
            if step.exit_code <= 0 or (later and not suffered):
                continue
            if suffered and not _had_no_part(step, node_events, nodes):
                continue
            signature = catalogue["exited_first"]
            if end is None and node_events.first_error is not None and node_events.first_error.clear:
                continue
            event = told_in(step.line, signature, node_events, step.places, step.exit_code)
            event.where = event.where.filled(_root_on(event.where.host, node_events))
            return _told_below(event, all_events(nodes)) or event
    return None


def _told_below(ended: Occurrence, events: Iterable[Occurrence]) -> Occurrence | None:
    """Return what stands close below the end of a task and says what that task was, a helper of mpirun's."""
    for event in events:
        close = event.log == ended.log and 0 < event.start - ended.number <= _LINES_OF_A_STACK
        if close and ended.signature.id in event.signature.explains:
            event.where = event.where.filled(ended.where)
            return event
    return None


def crashed_beside(killed: Occurrence, events: Iterable[Occurrence]) -> Occurrence | None:
    """Return the crash of one of the processes that MPICH's hydra lists with those that it killed for it.

    It lists them by their ranks and not as they ended, and never sends the signal of a crash itself.
    """
    if killed.signature.id != "killed" or _OF_HYDRA not in killed.shown:
        return None
    crashes = (
        event
        for event in events
        if event.role is SignatureRole.CAUSE and event.log == killed.log and _OF_HYDRA in event.shown
    )
    return next((event for event in crashes if event is not killed), None)


def failed_before(killed: Occurrence, nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return the process that ended with an error before a container was killed, where nobody else suffered.

    Whoever runs the containers of a job then ends those that are left.
    """
    suffered = any(event.signature.has(SignatureTrait.SUFFERED) for event in all_events(nodes))
    if suffered or killed.signature.id != "killed" or not _OF_A_CONTAINER.search(killed.shown):
        return None
    for node_events in nodes:
        episode = node_events.episode
        ends = [(one.line, one.exit_code, one.places) for one in episode.steps]
        ends += [(one.line, one.exit_code, (one.where,)) for one in episode.endings]
        for line, code, places in sorted(ends, key=lambda end: end[0].number):
            before = (
                killed.log == node_events.log and 0 < killed.start - line.number <= _LINES_OF_A_STANDSTILL
            )
            if before and 0 < code < FIRST_OF_SIGNALS:
                return told_in(line, catalogue["exited_first"], node_events, places, code)
    return None


def told_in(
    line: Line, signature: Signature, told_by: NodeEvents, places: Sequence[Location], code: int | None = None
) -> Occurrence:
    """Return what a line tells of processes at some places, with the code that ended them if it says one."""
    event = Occurrence(
        signature, signature.role, told_by.log,
        line.number, line.number, line.shown,
        places[0] if places else NOWHERE, details={} if code is None else {"exit code": str(code)},
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
    """Tell whether a task ended before any other suffered, and is none of those that then did.

    srun may tell of it a little later than they do: then it must be the first of which srun tells, and have
    left with a code of its own.
    """
    if any(node_events.episode.endings for node_events in nodes):
        return False  # a launcher within the task tells more
    suffered = [event for one in nodes for event in one.episode.of_role(SignatureRole.CONSEQUENCE)]
    later = [event.start - step.line.number for event in suffered if event.log == told_by.log]
    own_code = step.exit_code > _OF_AN_EXCEPTION and step is told_by.episode.steps[0]
    told_late = own_code and not any(
        event.signature.has(SignatureTrait.WAITED) or (where.rank, where.host) == (None, None)
        for event in suffered
        for where in event.wheres
    )
    since = -_LINES_OF_A_STANDSTILL if told_late else 0
    if later and not since <= min(later) <= _LINES_OF_A_STANDSTILL:
        return False  # they suffered before, or went on well without it: a step of before the training
    places = [where for event in suffered for where in event.wheres if where != NOWHERE]
    return not any(_may_be(task, where) for task in step.places for where in places)


def _may_be(task: Location, where: Location) -> bool:
    """Tell whether a process may be a task of the scheduler, which is a rank where it started it itself."""
    numbers = {where.task, where.rank} - {None}
    apart = None not in (task.host, where.host) and task.host != where.host
    return not apart and (task.task in numbers if numbers else task.host == where.host)


def _root_on(host: str | None, node_events: NodeEvents) -> Location:
    """Return the rank that torchrun on a host saw end first, if it is one."""
    roots = {
        Location(rank=one.where.rank)
        for one in node_events.episode.endings
        if one.is_root and (one.where.host or "").partition(".")[0] == host
    }
    return roots.pop() if len(roots) == 1 else NOWHERE
