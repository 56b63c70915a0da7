"""What one line or exception shows about another one above it: a cause of its own, or a new attempt.

A launcher, a scheduler or a script may restart a training in the log of the previous one. Only work below
such a line, or an exception with a cause of its own, shows that another attempt came that far; then the end
of earlier attempts is not that of the last one.
"""

from __future__ import annotations

import re

from platform_launch.why.lines.literals import Guarded
from platform_launch.why.messages.signatures import SignatureTrait
from platform_launch.why.reading.events import Occurrence

# Exceptions of these types come from the code that raised them, whatever else happened to the job.
OF_THE_CODE = frozenset(
    """
    ArithmeticError AssertionError AttributeError FileNotFoundError ImportError IndentationError IndexError
    KeyError ModuleNotFoundError NameError NotImplementedError OverflowError SyntaxError TypeError
    UnboundLocalError UnicodeDecodeError ValueError ZeroDivisionError
    """.split()  # noqa: SIM905 - names read best as text
)
# What code reports if something is missing after an earlier failure.
_LEFT_WITHOUT = re.compile(r"NoneType|is not defined|referenced before assignment|access local variable")
# These, and their explanations, say themselves that a process or the job was ended or never began.
_ENDS = frozenset(
    ("abort", "container_start", "killed", "mpi_start", "ray_actor_died", "slurm_launch", "terminated")
)
_VAGUE = 1
_TRAINING = r"(?:the |this |your )?(?:job|process|run|script|trainer|training|worker group|workers?)"
_BEGINS = Guarded(
    r"\d+/\d+ attempts left; will restart worker group"  # torchrun
    r"|DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)\b"  # Slurm, which appends to a job's file
    r"|^\W*(?i:(?:begin(?:ning)?|launch(?:ing)?|restart(?:ing)?|run(?:ning)?|start(?:ing)?)(?: of)?\W{1,3}"
    r"(?:\w{1,20} )?)?"
    r"(?i:attempt|restart|retry|try)\W{0,3}\d{1,4}(?:\W{0,3}(?:of|/)\W{0,3}\d{1,4})?\W*$"
    r"|(?i:\battempt \d{1,4} failed\b|\bre-?(?:launch|queu|start|submitt)(?:ing|ed)? " + _TRAINING + r"\b)"
    r"|(?i:\bresum(?:ed|ing) (?:training )?from\b)"
    r"|(?i:\b" + _TRAINING + r" (?:has been |is |was )?re-?(?:launched|queued|started|submitted)\b)"
)
# A job's script loads its modules: another job's, if the file already shows one.
_LOADS_MODULES = re.compile(
    r"Loaded module: \w[\w.+-]{0,60}/\S{1,100}$|Loading \w[\w.+-]{0,60}/v?\d{1,4}\.\d[\w.+-]{0,60}$"
    r"| {1,4}Loading requirement: \S"
)


def is_of_the_code(event: Occurrence) -> bool:
    """Return whether an event is an unknown exception of a type that the code around it raises by itself."""
    raised = event.raised
    known = event.signature.id != "python_exception" or raised is None
    return not known and raised is not None and raised.type.rpartition(".")[2] in OF_THE_CODE


def has_own_cause(proof: Occurrence, claim: Occurrence, *, later_job: bool = False) -> bool:
    """Return whether an uncaught exception does not follow from the report in a line above it."""
    of_proof, above, raised = proof.signature, claim.signature, proof.raised
    if raised is None or above.exit_codes or _ENDS.intersection((above.id, *above.explains)):
        return False
    if of_proof is above:
        return of_proof.distinct and claim.raised is not None and claim.raised.text != raised.text
    of_the_code = raised.type.rpartition(".")[2] in OF_THE_CODE
    if not of_proof.patterns:
        if of_the_code:
            return later_job or _LEFT_WITHOUT.search(raised.message) is None
        return above.has(SignatureTrait.OFTEN_CAUGHT)
    return of_proof.specificity > _VAGUE and (of_the_code or of_proof.specificity >= above.specificity)


def is_restart(text: str) -> bool:
    """Return whether a line starts the job again, or another one in the same file."""
    return loads_modules(text) or _BEGINS.search(text) is not None


def loads_modules(text: str) -> bool:
    """Return whether environment modules print this line when a job's script loads them."""
    return _LOADS_MODULES.match(text) is not None
