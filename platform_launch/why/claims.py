"""Which lines that say a cause their process got over, as what follows them in their log shows.

A line that matches a cause is a claim. A traceback that nobody caught is a proof: it ended its process. A
claim stays a cause unless work went on below it, or the first proof below it has a cause of its own. Then it
is a suspect, as a warning is: it may be harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from platform_launch.why.events import NodeEvents, Occurrence
from platform_launch.why.steps import FEW_STEPS, shows_work

# An exception of these types comes from the code that raised it, whatever else happened to the job.
OF_THE_CODE = frozenset(
    """
    ArithmeticError AssertionError AttributeError FileNotFoundError ImportError IndentationError IndexError
    KeyError ModuleNotFoundError NameError NotImplementedError OverflowError SyntaxError TypeError
    UnboundLocalError UnicodeDecodeError ValueError ZeroDivisionError
    """.split()  # noqa: SIM905 - names read best as text
)
# What programs try and do without.
_OFTEN_CAUGHT = frozenset(
    """
    extension_abi hub_offline import_failed library_missing missing_module submodule_missing
    """.split()  # noqa: SIM905
)
# What code says that was left without something by an earlier failure.
_LEFT_WITHOUT = re.compile(r"NoneType|is not defined|referenced before assignment|access local variable")
# What is one of these, or explains one, says itself that a process or the job was ended or never began.
_ENDS = frozenset(
    ("abort", "container_start", "killed", "mpi_start", "ray_actor_died", "slurm_launch", "terminated")
)
_FEW_LINES = 2
_VAGUE = 1
_LOOKBACK_LINES = 300
_MOST_CLAIMS = 200
_MOST_LOOKS = 200
_SHORTEST_NAME = 4


@dataclass
class _Claim:
    """A claim, who holds it, and the first line below it that shows what others suffered."""

    holder: NodeEvents
    event: Occurrence
    suffered_at: int = 0


class Claims:
    """The claims of one log that are not decided yet.

    ``preceding`` returns up to so many lines of the log before the current one, nearest first.
    """

    def __init__(self, preceding: Callable[[int], list[bytes]]) -> None:
        self._preceding = preceding
        self._open: list[_Claim] = []
        self._looks = 0

    def add(self, holder: NodeEvents, event: Occurrence) -> None:
        """Take note of a line that says a cause."""
        lone = event.raised is None or not event.raised.has_frames
        if lone and len(self._open) < _MOST_CLAIMS:
            self._open.append(_Claim(holder, event))

    def ended(self, number: int) -> None:
        """Take note of a line that tells how a process ended: what stands right above was its last word."""
        self._open = [one for one in self._open if not 0 < number - one.event.last <= _FEW_LINES]

    def suffered(self, event: Occurrence, number: int) -> None:
        """Take note of a consequence, while line ``number`` is read: work may have gone on until then."""
        above = [one for one in self._open if one.event.last < event.start and not one.suffered_at]
        worked_at = self._worked_at(above, event.start, number)
        for one in above:
            one.suffered_at = event.start
            if one.event.last < worked_at:
                self._open.remove(one)
                one.holder.overcome(one.event)

    def proved(self, proof: Occurrence, number: int) -> None:
        """Decide on the claims above a proof, while line ``number`` is read."""
        above = [one for one in self._open if one.event.last < proof.start]
        worked_at = self._worked_at(above, proof.start, number)
        for one in above:
            self._open.remove(one)
            stood = 0 < one.suffered_at < proof.start
            if one.event.last < worked_at or (not stood and _has_own_cause(proof, one.event)):
                one.holder.overcome(one.event)

    def _worked_at(self, claims: list[_Claim], start: int, number: int) -> int:
        """Return up to which line work went on above line ``start``, as far as that matters to claims."""
        if not claims or self._looks >= _MOST_LOOKS:
            return 0
        self._looks += 1
        since = min(one.event.last for one in claims)
        above = self._preceding(min(number - since, number - start + _LOOKBACK_LINES))[number - start :]
        steps = 0
        for distance, data in enumerate(above, 1):
            steps += shows_work(data)
            if steps == FEW_STEPS:
                return start - distance
        return 0


def _has_own_cause(proof: Occurrence, claim: Occurrence) -> bool:
    """Tell whether an uncaught exception is no consequence of what a line above it says."""
    known, said = proof.signature, claim.signature
    if proof.raised is None or said.exit_codes or _ENDS.intersection((said.id, *said.explains)):
        return False
    if known is said:
        return known.distinct and claim.raised is not None and claim.raised.text != proof.raised.text
    if any(value in proof.raised.text for value in claim.details.values() if len(value) >= _SHORTEST_NAME):
        return False  # of the same thing
    of_the_code = proof.raised.type.rpartition(".")[2] in OF_THE_CODE
    if not known.patterns:
        swallowed = _LEFT_WITHOUT.search(proof.raised.message) is not None
        return not swallowed if of_the_code else said.id in _OFTEN_CAUGHT
    telling = known.specificity > _VAGUE and (of_the_code or known.specificity >= said.specificity)
    return telling and known.id not in said.explains
