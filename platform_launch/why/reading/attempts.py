"""Lines in which a launcher, a scheduler or a script begins a training anew, in the log of the one before.

Only work below such a line, or an exception of a cause of its own, shows that another attempt came so far;
then what ended the attempts above it is not what ended the last one.
"""

from __future__ import annotations

import re

from platform_launch.why.lines.literals import Guarded

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


def begins_anew(text: str) -> bool:
    """Check whether a line starts the job once more, or another one in the same file."""
    return loads_modules(text) or _BEGINS.search(text) is not None


def loads_modules(text: str) -> bool:
    """Check whether environment modules print this line as a job's script loads them."""
    return _LOADS_MODULES.match(text) is not None
