"""Which lines that say a cause their process got over, as what follows them in their log shows.

A line that matches a cause is a claim, and so is a traceback that is quoted. One that nobody caught is a
proof: it ended its process. A claim stays a cause unless work went on below it, or the first proof below
it has a cause of its own. Then it is a suspect, as a warning is: it may be harmless. What a process had
held back is written at its end, below its last error; so where the clock says that work went on until
later, or nothing tells of an end, the claim is no answer at all.

A launcher, a scheduler or a script may begin a training anew in the log of the one before. Only work below
such a line, or an exception of a cause of its own, shows that another attempt came so far; then what ended
the attempts above it is not what ended the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from platform_launch.why.lines.line import Line
from platform_launch.why.lines.literals import Guarded
from platform_launch.why.messages.signatures import SignatureRole, SignatureTrait
from platform_launch.why.reading.events import NodeEvents, Occurrence
from platform_launch.why.reading.work import FEW_STEPS, shows_work

# An exception of these types comes from the code that raised it, whatever else happened to the job.
OF_THE_CODE = frozenset(
    """
    ArithmeticError AssertionError AttributeError FileNotFoundError ImportError IndentationError IndexError
    KeyError ModuleNotFoundError NameError NotImplementedError OverflowError SyntaxError TypeError
    UnboundLocalError UnicodeDecodeError ValueError ZeroDivisionError
    """.split()  # noqa: SIM905 - names read best as text
)
# What code reports if an earlier failure left it without something.
_LEFT_WITHOUT = re.compile(r"NoneType|is not defined|referenced before assignment|access local variable")
# One of these, or what explains one, says itself that a process or the job was ended or never began.
_ENDS = frozenset(
    ("abort", "container_start", "killed", "mpi_start", "ray_actor_died", "slurm_launch", "terminated")
)
_FEW_LINES = 2
_VAGUE = 1
_SHORTEST_NAME = 4
_LOOKBACK_LINES = 300
# Others may work so long before they miss the one that failed.
_SOON_S = 60.0
_MOST_CLAIMS = 200
_MOST_LOOKS = 200
_TRAINING = r"(?:the |this |your )?(?:job|process|run|script|trainer|training|worker group|workers?)"
_BEGINS = Guarded(
    r"\d+/\d+ attempts left; will restart worker group"  # torchrun
    r"|DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)\b"  # Slurm, which appends to the file of a job
    r"|^\W*(?i:(?:begin(?:ning)?|launch(?:ing)?|restart(?:ing)?|run(?:ning)?|start(?:ing)?)(?: of)?\W{1,3}"
    r"(?:\w{1,20} )?)?"
    r"(?i:attempt|restart|retry|try)\W{0,3}\d{1,4}(?:\W{0,3}(?:of|/)\W{0,3}\d{1,4})?\W*$"
    r"|(?i:\battempt \d{1,4} failed\b|\bre-?(?:launch|queu|start|submitt)(?:ing|ed)? " + _TRAINING + r"\b)"
    r"|(?i:\bresum(?:ed|ing) (?:training )?from\b)"
    r"|(?i:\b" + _TRAINING + r" (?:has been |is |was )?re-?(?:launched|queued|started|submitted)\b)"
)
# A job's script loads its modules: another job's, where a file that jobs append to tells of one already.
_LOADS_MODULES = re.compile(
    r"Loaded module: \w[\w.+-]{0,60}/\S{1,100}$|Loading \w[\w.+-]{0,60}/v?\d{1,4}\.\d[\w.+-]{0,60}$"
    r"| {1,4}Loading requirement: \S"
)


@dataclass
class _Claim:
    """A claim, who holds it, and the first line below it that shows what others suffered."""

    holder: NodeEvents
    event: Occurrence
    suffered_at: int = 0

    @property
    def is_cause(self) -> bool:
        """Tell it from a consequence of processes that did not meet yet."""
        return self.event.role is not SignatureRole.CONSEQUENCE


@dataclass(frozen=True)
class _Work:
    """The line from which on a few steps of work are shown, and when the last one of them was."""

    number: int = 0
    time_s: float | None = None

    def went_on_after(self, event: Occurrence) -> bool:
        """Tell whether work was shown below an event, and the clock does not say that it was before."""
        later_s = self._later_than(event)
        return event.last < self.number and (later_s is None or later_s >= 0)

    def went_on_for_long_after(self, event: Occurrence) -> bool:
        """Check whether the clock shows work a minute or more after an event."""
        later_s = self._later_than(event)
        return event.last < self.number and later_s is not None and later_s > _SOON_S

    def _later_than(self, event: Occurrence) -> float | None:
        said = event.span.not_before_s if event.span.exact else None
        return None if said is None or self.time_s is None else self.time_s - said


class Claims:
    """The claims of one log that are not decided yet.

    ``preceding`` returns up to so many lines of the log before the current one, nearest first; ``parsed``
    takes one apart.
    """

    def __init__(self, preceding: Callable[[int], list[bytes]], parsed: Callable[[int, bytes], Line]) -> None:
        self._preceding, self._parsed = preceding, parsed
        self._open: list[_Claim] = []
        self._proofs: list[_Claim] = []
        self._looks = 0

    def add(self, holder: NodeEvents, event: Occurrence) -> None:
        """Take note of a line that says a cause, or that processes did not meet yet."""
        if len(self._open) < _MOST_CLAIMS:
            (self._proofs if event.is_proof else self._open).append(_Claim(holder, event))

    def ended(self, start: int, number: int) -> None:
        """Take note of a line that tells how a process ended: what stands right above was its last word."""
        self._open = [one for one in self._open if not 0 < start - one.event.last <= _FEW_LINES]
        self._overcome(self._open, self._last_work(self._open, start, number))

    def suffered(self, event: Occurrence, number: int) -> None:
        """Take note of a consequence, while line ``number`` is read: work may have gone on until then."""
        above = [one for one in self._open if one.event.last < event.start and not one.suffered_at]
        self._overcome(above, self._last_work(above, event.start, number))
        for one in (*above, *(one for one in self._proofs if one.event.last < event.start)):
            one.suffered_at = one.suffered_at or event.start

    def proved(self, proof: Occurrence, number: int) -> None:
        """Decide on the claims above a proof, while line ``number`` is read."""
        above = [one for one in self._open if one.event.last < proof.start]
        work = self._last_work(above, proof.start, number)
        self._overcome([one for one in above if not one.is_cause], work)
        for one in (one for one in above if one.is_cause):
            self._open.remove(one)
            stood = 0 < one.suffered_at < proof.start
            if work.went_on_after(one.event) or (not stood and has_own_cause(proof, one.event)):
                one.holder.overcome(one.event)

    def _overcome(self, claims: list[_Claim], work: _Work) -> None:
        for one in [one for one in claims if work.went_on_after(one.event)]:
            self._open.remove(one)
            if not one.is_cause or (
                work.went_on_for_long_after(one.event) and not one.event.signature.explains
            ):
                one.holder.outlive(one.event)
            else:
                one.holder.overcome(one.event)

    def _last_work(self, claims: list[_Claim], start: int, number: int) -> _Work:
        """Return what is known of the work above line ``start``, as far as that matters to claims."""
        if not claims or self._looks >= _MOST_LOOKS:
            return _Work()
        self._looks += 1
        since = min(one.event.last for one in claims)
        above = self._preceding(min(number - since, number - start + _LOOKBACK_LINES))[number - start :]
        shown = [(start - distance, data) for distance, data in enumerate(above, 1) if shows_work(data)]
        if len(shown) < FEW_STEPS:
            return _Work()
        return _Work(shown[FEW_STEPS - 1][0], self._parsed(*shown[0]).time_s)


def is_of_the_code(event: Occurrence) -> bool:
    """Check whether an event is an unknown exception of a type that the code around it raises by itself."""
    raised = event.raised
    known = event.signature.id != "python_exception" or raised is None
    return not known and raised is not None and raised.type.rpartition(".")[2] in OF_THE_CODE


def has_own_cause(proof: Occurrence, claim: Occurrence, *, later_job: bool = False) -> bool:
    """Check whether an uncaught exception does not follow from what a line above it reports."""
    known, said, raised = proof.signature, claim.signature, proof.raised
    if raised is None or said.exit_codes or _ENDS.intersection((said.id, *said.explains)):
        return False
    if known is said:
        return known.distinct and claim.raised is not None and claim.raised.text != raised.text
    if any(value in raised.text for value in claim.details.values() if len(value) >= _SHORTEST_NAME):
        return False  # of the same thing
    of_the_code = raised.type.rpartition(".")[2] in OF_THE_CODE
    if not known.patterns:
        if of_the_code:
            return later_job or _LEFT_WITHOUT.search(raised.message) is None
        return said.has(SignatureTrait.OFTEN_CAUGHT)
    telling = known.specificity > _VAGUE and (of_the_code or known.specificity >= said.specificity)
    return telling and known.id not in said.explains


def begins_anew(text: str) -> bool:
    """Check whether a line starts the job once more, or another one in the same file."""
    return loads_modules(text) or _BEGINS.search(text) is not None


def loads_modules(text: str) -> bool:
    """Check whether environment modules print this line as a job's script loads them."""
    return _LOADS_MODULES.match(text) is not None
