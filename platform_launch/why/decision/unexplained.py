"""What stands above an end, or above what partners suffered, and is no known cause: often the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.why.lines.line import NOWHERE, Location, shown
from platform_launch.why.messages.signatures import SignatureRole, SignatureTrait
from platform_launch.why.note import Note, note
from platform_launch.why.reading.endings import ENDED_ALONG, FIRST_OF_SIGNALS
from platform_launch.why.reading.error_lines import introduces
from platform_launch.why.reading.events import FirstError, NodeEvents, Occurrence, all_events
from platform_launch.why.reading.steps import says_end

# What may be missing because what was to write it failed, and a refusal above which a site says its reason.
_MISSED = frozenset(("file_missing", "slurm_refused"))
_CLOSE_LINES = 20
_LINES_ABOVE = 50
_LINES_TOGETHER = 4
# C++ says what was thrown below the line that something was, and where the message opens with the place that
# threw it, some lines further; what a program said before it called MPI_Abort may come after mpirun's banner.
_LINES_BELOW = {"abort": 4, "mpi_abort": 12}
_LINES_AT_THE_END = 4
# Launchers say first how they end the others, and a task's output may be held back.
_LINES_AT_AN_END = 24


def error_before(chosen: Occurrence, nodes: Sequence[NodeEvents]) -> FirstError | None:
    """Return the error of no known kind that ended a process, where the answer were only what followed."""
    silent = chosen.signature.has(SignatureTrait.SILENT)
    if not silent and not chosen.signature.has(SignatureTrait.SUFFERED):
        return None
    suffered = [
        event
        for node_events in nodes
        for event in node_events.episode.of_role(SignatureRole.CONSEQUENCE)
        if event is not chosen and not event.signature.has(SignatureTrait.SILENT)
    ]
    ranks = {where.rank for event in (*suffered, chosen) for where in event.wheres} - {None}
    ended = [place for node_events in nodes for place in _ended(node_events)]
    for error in (*_errors(chosen, nodes), *_last_of_other_logs(chosen, nodes)):
        if not error.clear or any(e.log == error.log and e.start < error.number for e in suffered):
            continue
        if error.log != chosen.log or says_end(error.shown):
            close = True
        elif silent:
            close = chosen.start - error.number <= _CLOSE_LINES or error in _last_words(nodes)
        else:
            close = error.where.rank is not None and (
                error.where.rank not in ranks or any(error.where.rank == place.rank for place in ended)
            )
        if close:
            return _placed(error, chosen)
    return None


def first_error(nodes: Sequence[NodeEvents]) -> FirstError | None:
    """Return the first line that says an error, else the first that looks like one."""
    errors = [node_events.first_error for node_events in nodes if node_events.first_error is not None]
    return next((error for error in errors if error.clear), errors[0] if errors else None)


def ended_one(error: FirstError, nodes: Sequence[NodeEvents]) -> bool:
    """Tell whether one process alone ended by itself, right below an error that may be its own.

    Nothing else may be the cause then.
    """
    suspected = any(e.role is SignatureRole.SUSPECT and not e.mention for e in all_events(nodes))
    if suspected or not error.clear or error.outlived or any(one.success_said for one in nodes):
        return False
    ends = [(one.log, *end) for one in nodes for end in _ends(one)]
    where = error.where
    for _, code, _, place in ends:
        if not 0 < code < FIRST_OF_SIGNALS or not _agree(where, place):
            return False
        where = where.filled(place)
    below = (number - error.number for log, _, number, _ in ends if log == error.log)
    return any(0 < distance <= _LINES_AT_AN_END for distance in below)


def _agree(one: Location, other: Location) -> bool:
    return one.filled(other) == other.filled(one)


def _placed(error: FirstError, end: Occurrence) -> FirstError:
    """Return an error with the place of the end that stands beside it, where it names none itself."""
    beside = error.log == end.log and abs(end.start - error.number) <= _LINES_TOGETHER
    return replace(error, where=end.where) if beside and error.where == NOWHERE else error


def heard_before(chosen: Occurrence | None, nodes: Sequence[NodeEvents]) -> list[Note]:
    """Name the line above an answer that does not say why: an error, or else the last words of a process."""
    if chosen is not None:
        answer, aborts = chosen.signature, chosen.signature.id == "mpi_abort"
        follows = answer.has(SignatureTrait.SUFFERED, SignatureTrait.SILENT)
        if not follows and not aborts and answer.id not in _MISSED:
            return []
        for error in _errors(chosen, nodes):
            told = introduces(error.shown)  # what it introduces is the answer itself
            if (error.clear and not told) or aborts:
                return [note("error-above", log=shown(error.log), line=error.number, text=error.shown)]
    if chosen is None or chosen.signature.has(SignatureTrait.SILENT):
        for said in _last_words(nodes)[:1]:
            return [note("last-words", log=shown(said.log), line=said.number, text=said.shown)]
    return []


def _errors(chosen: Occurrence, nodes: Sequence[NodeEvents]) -> list[FirstError]:
    """Return the errors close above an event."""
    errors = [node_events.first_error for node_events in nodes if node_events.first_error is not None]
    below = _LINES_BELOW.get(chosen.signature.id, -1)
    return [
        error
        for error in errors
        if error.log == chosen.log
        and (
            -below <= chosen.start - error.number <= _LINES_ABOVE
            or error in _last_words(nodes)
            or (says_end(error.shown) and error.number < chosen.start)
        )
    ]


def _last_of_other_logs(chosen: Occurrence, nodes: Sequence[NodeEvents]) -> list[FirstError]:
    """Return the errors that other logs end with, of processes which suffered nothing before."""
    return [
        one.first_error
        for one in nodes
        if one.log != chosen.log
        and one.first_error is not None
        and one.episode.ends
        and one.lines_read - one.first_error.number <= _LINES_AT_THE_END
        and not one.episode.of_role(SignatureRole.CONSEQUENCE)
    ]


def _last_words(nodes: Sequence[NodeEvents]) -> list[FirstError]:
    return [node_events.last_words for node_events in nodes if node_events.last_words is not None]


def _ended(node_events: NodeEvents) -> list[Location]:
    """Return the processes that launchers and schedulers saw end with an exit code of their own."""
    return [place for code, _, place in _ends(node_events) if code > 0]


def _ends(node_events: NodeEvents) -> list[tuple[int, int, Location]]:
    """Return how processes ended that were not ended with the others: their code, the line, and which."""
    episode = node_events.episode
    steps = [step for step in episode.steps if not step.was_cancelled]
    ends = [(step.exit_code, step.line.number, place) for step in steps for place in step.places]
    endings = [one for one in episode.endings if one.is_root or one.exit_code not in ENDED_ALONG]
    return ends + [(one.exit_code, one.line.number, one.where) for one in endings]
