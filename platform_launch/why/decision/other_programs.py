"""Which program of a batch script answers, where several failed, each by itself."""

from __future__ import annotations

from collections.abc import Sequence

from platform_launch.why.decision.other_events import named
from platform_launch.why.messages.signatures import SignatureRole
from platform_launch.why.note import Note, note
from platform_launch.why.reading.claims import OF_THE_CODE, has_own_cause
from platform_launch.why.reading.events import Occurrence

# What may not be there because the program that was to make it had failed.
_LEFT_OUT = frozenset(
    ("checkpoint_empty", "checkpoint_missing", "data_empty", "file_missing", "hub_not_found")
)


def of_several_programs(cause: Occurrence, events: Sequence[Occurrence]) -> tuple[Occurrence, list[Note]]:
    """Return what answers where a program that ran after that of a cause failed too, and what is beside it.

    It is the failure of the program that several processes ran, as those of a training do, else the first
    one; nothing says which of them whoever asks means, so it is likely and no more.
    """
    if not cause.is_proof or cause.where.rank is not None or not _script(cause):
        return cause, []
    others = [event for event in events if _is_of_another(event, cause)]
    if not others:
        return cause, []
    last = max(others, key=lambda event: event.start)
    chosen, other = (last, cause) if cause.of_one_process and not last.of_one_process else (cause, last)
    beside = [note("another-program", event=named(other))]
    chosen.role = SignatureRole.SUSPECT
    return chosen, beside


def _is_of_another(event: Occurrence, cause: Occurrence) -> bool:
    below = event.log == cause.log and event.start > cause.last
    if not below or not event.is_proof or event.raised is None or event.signature.id in _LEFT_OUT:
        return False
    # A program that only ran the first one says so in words of its own.
    told = event.signature.patterns or event.raised.type.rpartition(".")[2] in OF_THE_CODE
    return bool(told) and _script(event) not in ("", _script(cause)) and has_own_cause(event, cause)


def _script(event: Occurrence) -> str:
    """Return the name of the file that a program was started with, as it is called from any folder."""
    return event.raised.script.rpartition("/")[2] if event.raised is not None else ""
