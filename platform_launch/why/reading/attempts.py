"""Lines in which a launcher, a scheduler or a script begins a training anew, in the log of the one before.

Only work below such a line, or an exception of a cause of its own, shows that another attempt came so far;
then what ended the attempts above it is not what ended the last one.
"""

from __future__ import annotations

import re

from platform_launch.why.lines.line import NOWHERE, Location
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
# A command that a shell prints before it runs it (set -x), or behind whose prompt someone typed it.
_PROMPT = (
    r"(?:\([\w.-]{1,60}\) )?(?:\[[\w.-]{1,60}@(?P<within>[\w.-]{1,60}) [^][]{1,200}\]"
    r"|[\w.-]{1,60}@(?P<at>[\w.-]{1,60}):[^ $#]{0,200}) ?[$#] |\$ "
)
_COMMAND = re.compile(rf"(?:(?P<traced>\+{{1,5}} )|{_PROMPT})(?P<command>\S.*)")
# What starts a training, with the script that it starts.
_STARTS = re.compile(
    r"(?:\w{1,60}=\S* |(?:exec|nohup|sudo|time) )*(?:\S{0,200}/)?"
    r"(?P<program>accelerate|bash|deepspeed|mpiexec|mpirun|python[\d.]*|sh|srun|torchrun)\b"
    r"(?! -c\b)(?:.*? (?P<script>\S{1,200}\.(?:py|sh))\b)?"
)
_MOST_PROGRAMS = 100
# Of these, what they start may run elsewhere.
_ELSEWHERE = frozenset(("bash", "deepspeed", "mpiexec", "mpirun", "sh", "srun"))
# One of several machines that are alike, or of a job's pods.
_NUMBERED = re.compile(r"[a-z][\w.-]*-\d{1,5}")


class Attempts:
    """Knows what begins a training in one log, and on which machines someone typed it."""

    def __init__(self) -> None:
        self._traced: set[tuple[str, str | None]] = set()
        self._typed_on: set[str | None] = set()

    @property
    def place(self) -> Location:
        """Where all that was typed ran, if that is one of several machines."""
        host = next(iter(self._typed_on)) if len(self._typed_on) == 1 else None
        return Location(host=host) if host and _NUMBERED.fullmatch(host) else NOWHERE

    def begins_anew(self, text: str) -> bool:
        """Tell whether a line says that the training is begun once more."""
        if (command := _COMMAND.match(text)) is None:
            return loads_modules(text) or _BEGINS.search(text) is not None
        if (started := _STARTS.match(command["command"])) is None:
            return False
        if command["traced"] is None:
            on = command["at"] or command["within"]
            self._typed_on.add(None if started["program"] in _ELSEWHERE else on)
            return True
        # A script starts several programs, one after the other; the same one is started again.
        program = started["program"], started["script"]
        again = program in self._traced
        if len(self._traced) < _MOST_PROGRAMS:
            self._traced.add(program)
        return again


def loads_modules(text: str) -> bool:
    """Tell whether a line is one of those that environment modules print as a job's script loads them."""
    return _LOADS_MODULES.match(text) is not None


def is_command(text: str) -> bool:
    """Tell whether a line is a command that a shell was given."""
    return _COMMAND.match(text) is not None
