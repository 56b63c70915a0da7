"""What answers where no line is a cause: an end without a word, a consequence, or a suspect."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from platform_launch.why.decision.order import earliest
from platform_launch.why.decision.root_cause import (
    LINES_OF_A_MESSAGE,
    is_over,
    is_sequel,
    is_sequel_of,
    told_in,
    wrote,
)
from platform_launch.why.decision.title import is_title
from platform_launch.why.lines.line import NOWHERE
from platform_launch.why.messages.signatures import Catalogue, SignatureRole, SignatureTrait
from platform_launch.why.reading.collectives import Collectives
from platform_launch.why.reading.events import SAYS_WHAT, FirstError, NodeEvents, Occurrence

_FEW_LINES = 2
_LINES_OF_AN_ERROR = 4
_LINES_OF_AN_END = 2
_LINES_OF_A_START = 20
_LINES_OF_A_REPORT = 6
_LINES_OF_A_SCRIPT = 60
_VAGUE = 2
# What a command of a job's script says that it could not do, where what follows needs it.
_COMMAND_OF_A_SCRIPT = re.compile(
    r"(?:/bin/)?(?:cat|cp|mkdir|mv|tar|unzip): |\S{1,300}: line \d{1,6}: (?:cd|source|\.|/\S{1,300}): "
)


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


def left_by_itself(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return the rank that torchrun saw end first, with a code that no exception gives, and without a word.

    Beside it there are only partners that lost their connections to it.
    """
    for node_events in nodes:
        roots = [one for one in node_events.episode.endings if one.is_root and one.where.rank is not None]
        if len({root.where.rank for root in roots}) != 1 or roots[0].exit_code <= 1:
            continue
        root = roots[0]
        if catalogue.of_exit_code(root.exit_code) is not None:
            return None  # a shell's code for a signal
        return told_in(root.line, catalogue["rank_exited"], node_events, [root.where], root.exit_code)
    return None


def ended_alike(nodes: Sequence[NodeEvents], catalogue: Catalogue) -> Occurrence | None:
    """Return how all processes ended that torchrun lists, where what it says of the first one is cut off."""
    endings = [(one, ending) for one in nodes for ending in one.episode.endings]
    codes = {ending.exit_code for _, ending in endings}
    signature = catalogue.of_exit_code(codes.pop()) if len(codes) == 1 else None
    if signature is None or any(ending.is_root for _, ending in endings):
        return None
    node_events, first = endings[0]
    return told_in(first.line, signature, node_events, [ending.where for _, ending in endings])


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
    first, met = called[0]
    return told_in(met, catalogue["barrier_absent"], first, ())


def best_consequence(events: Sequence[Occurrence], offsets: Mapping[int, float]) -> Occurrence | None:
    """Return the consequence that tells most, or the suspect that explains one that was seen."""
    consequences = [event for event in events if event.role is SignatureRole.CONSEQUENCE]
    seen = {event.signature.id for event in consequences}
    suspects = [event for event in events if event.role is SignatureRole.SUSPECT]
    explaining = [
        event
        for event in suspects
        if seen.intersection(event.signature.explains)
        and not is_sequel(event, events)
        and not any(is_over(event, end) for end in consequences)
    ]
    for group in (explaining, consequences):
        if group:
            answering = [event for event in group if not _ended_after_another(event, group)]
            best = max(event.signature.specificity for event in answering)
            chosen = earliest([e for e in answering if e.signature.specificity == best], offsets)[0]
            ends = [e for e in events if is_sequel_of(e, chosen)]
            if chosen.where == NOWHERE:
                chosen.where = next((e.where for e in ends), NOWHERE)
            for end in ends:
                chosen.where = chosen.where.filled(end.where) if wrote(end, chosen) else chosen.where
            return _reason_of(chosen, consequences)
    return None


def _ended_after_another(event: Occurrence, others: Iterable[Occurrence]) -> bool:
    """Tell whether a job was only ended after something else had gone wrong, as srun does of itself."""
    return event.signature.has(SignatureTrait.ENDS_JOB) and any(
        other.log == event.log and other.start < event.start
        for other in others
        if not other.signature.has(SignatureTrait.ENDS_JOB, SignatureTrait.SUFFERED)
    )


def _reason_of(chosen: Occurrence, consequences: Iterable[Occurrence]) -> Occurrence:
    """Return the reason that ends an error's own message, or that names the peer above; else the error.

    What C++ says of an exception that nobody caught stands right below the line of its end, or of what led
    to that.
    """
    for reason in consequences:
        below = reason.start - chosen.number
        if reason.log == chosen.log and 0 < below <= _LINES_OF_AN_END and SAYS_WHAT.search(reason.shown):
            reason.where = reason.where.filled(chosen.where)
            return reason
        if reason.log != chosen.log or chosen.signature.id not in reason.signature.explains:
            continue
        below, together = reason.number - chosen.number, NOWHERE in (chosen.where, reason.where)
        if 0 < below <= LINES_OF_A_MESSAGE and (together or chosen.where == reason.where):
            reason.where = reason.where.filled(chosen.where)
            return reason
        if -LINES_OF_A_MESSAGE <= below < 0 and "peer" in reason.details:
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
        return _explained(earliest(likely, offsets)[0], suspects)
    errors = [one.first_error.number for one in nodes if one.first_error is not None]
    for suspect in unmentioned:
        above = any(0 < suspect.start - number <= _LINES_OF_A_REPORT for number in errors)
        if above and suspect.signature.has(SignatureTrait.CUT_SHORT):
            return suspect
    if clear or ended:
        return next((e for e in suspects if e.signature.id == "traceback_cut"), None) if not clear else None
    # Nothing tells of an end: what is vague or only mentioned must be the last that the log says.
    told = [e for e in suspects if not e.mention or _is_of_a_script(e, nodes)]
    plain = [e for e in told if e.signature.specificity >= _VAGUE or e in printed]
    at_the_end = [event for event in suspects if _lines_after(nodes, event) < _FEW_LINES]
    if not plain and not at_the_end:
        return None
    return _warned_above(_explained(earliest(plain or at_the_end, offsets)[0], plain), suspects)


def _is_of_a_script(event: Occurrence, nodes: Sequence[NodeEvents]) -> bool:
    """Tell whether a command of a job's script failed, of which not much more came."""
    failed = _COMMAND_OF_A_SCRIPT.match(event.shown) is not None
    return failed and _lines_after(nodes, event) <= _LINES_OF_A_SCRIPT


def _explained(chosen: Occurrence, suspects: Iterable[Occurrence]) -> Occurrence:
    """Return the suspect that says what stands behind the chosen one; else that one."""
    heavy = (e for e in suspects if not e.mention or e.signature.has(SignatureTrait.PREPARES))
    return next((e for e in heavy if chosen.signature.id in e.signature.explains), chosen)


def _warned_above(chosen: Occurrence, suspects: Iterable[Occurrence]) -> Occurrence:
    """Return what is said close above a traceback that was cut off, and tells more; else what was chosen."""
    if chosen.signature.id != "traceback_cut":
        return chosen
    above = {chosen.start - e.last: e for e in suspects if e.log == chosen.log and e.mention}
    close = (e for distance, e in above.items() if 0 < distance <= _reach_of(e))
    return next((e for e in above.values() if is_title(e)), None) or next(close, chosen)


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
