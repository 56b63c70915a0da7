"""Lines in which a launcher, a scheduler or a script begins a training anew, in the log of the one before.

Only work below such a line shows that another attempt came so far; then what ended the attempts above it is
not what ended the last one.
"""

from __future__ import annotations

import re

_TRAINING = r"(?:the |this |your )?(?:job|process|run|script|trainer|training|worker group|workers?)"
_BEGINS = re.compile(
    r"\d+/\d+ attempts left; will restart worker group"  # torchrun
    r"|DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)\b"  # Slurm, which appends to the file of a job
    r"|^\W*(?i:(?:begin(?:ning)?|launch(?:ing)?|restart(?:ing)?|run(?:ning)?|start(?:ing)?)(?: of)?\W{1,3})?"
    r"(?i:attempt|restart|retry|try)\W{0,3}\d{1,4}(?:\W{0,3}(?:of|/)\W{0,3}\d{1,4})?\W*$"
    r"|(?i:\battempt \d{1,4} failed\b|\bre-?(?:launch|queu|start|submitt)(?:ing|ed)? " + _TRAINING + r"\b)"
    r"|(?i:\b" + _TRAINING + r" (?:has been |is |was )?re-?(?:launched|queued|started|submitted)\b)"
)


def begins_anew(text: str) -> bool:
    """Tell whether a line says that the training is begun once more."""
    return _BEGINS.search(text) is not None
