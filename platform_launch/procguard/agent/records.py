"""What a run leaves on disk: one file for each thing that happened, written once, whole or not at all.

    ready.json      the agent: it could start                {boot}
    launch.json     the agent: what to start, and how        (see launch.py; removed once it was read)
    starting.json   the agent: it starts now                 {boot, at}
    keeper.json     the supervisor: I hold it                {pid, started}, or the agent: nobody
                                                             {void, sentence}
    training.json   the supervisor: its process              {pid}
    stop.json       the agent: end it                        {reason, sentence, grace_s}
    ending.json     the supervisor: its end was asked for    {reason, sentence}
    exited.json     the supervisor: the command has exited   {boot, at, exit_code}
    ended.json      the supervisor: nothing is left of it    {boot, at, exit_code, stop_requested, reason,
                                                             sentence}
    cause.json      the supervisor: the line of its output that says why it failed   {line}
    verdict.txt     the supervisor: what ``why`` says
    verdict.json    the supervisor: what that is made from
    output.log      its output

The names of files stay what they were in the first version, where ``stop_requested`` was ``asked``: an agent
that is updated finds what runs.

Times are seconds of CLOCK_BOOTTIME, which no administrator sets; ``boot`` says of which run of the machine.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform_launch.files import PRIVATE, write_new, write_whole
from platform_launch.procguard.api.english import english
from platform_launch.sentences import Sentence, quoted

READY = "ready.json"
LAUNCH = "launch.json"
STARTING = "starting.json"
SUPERVISOR = "keeper.json"
TRAINING = "training.json"
STOP = "stop.json"
ENDING = "ending.json"
EXITED = "exited.json"
ENDED = "ended.json"
CAUSE = "cause.json"
VERDICT = "verdict.txt"
VERDICT_VALUES = "verdict.json"
LOG = "output.log"

_RESERVED_BYTES = 4096
_LONGEST_REASON = 4_000


def clock_s() -> float:
    """Return the time since this machine was started, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write(path: Path, record: Mapping[str, object]) -> None:
    """Write a record over an older one, readable for its owner alone. Raises OSError."""
    write_whole(path, json.dumps(record), mode=PRIVATE)


def claim(path: Path, record: Mapping[str, object]) -> bool:
    """Write a record if there is none; of several that try at once one succeeds. Raises OSError."""
    try:
        write_new(path, json.dumps(record), mode=PRIVATE)
    except FileExistsError:
        return False
    return True


def read(path: Path) -> dict[str, Any] | None:
    """Return a record, None where there is none; one that is no record is empty.

    Raises OSError where the disk does not answer: what cannot be seen is neither there nor gone.
    """
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def reason(sentence: Sentence | None, name: str = "reason") -> dict[str, object]:
    """Return a reason as fields of a record: its English, for every version, and what that is made of."""
    if sentence is None:
        return {name: ""}
    return {name: english(sentence), "sentence": sentence.document()}


def reason_of(record: Mapping[str, object], name: str = "reason") -> Sentence | None:
    """Return a record's reason, in the words of another version where this one does not know it."""
    try:
        sentence = Sentence.read(record.get("sentence"))
        english(sentence)
    except (ValueError, KeyError):
        text = str(record.get(name, ""))
        return quoted(text[:_LONGEST_REASON]) if text else None
    return sentence


class Reserved:
    """Room for a record that must be written later, whatever fills the disk until then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._room = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        write_new(self._room, b" " * _RESERVED_BYTES, mode=PRIVATE)

    def write(self, record: Mapping[str, object]) -> None:
        """Write the record, of 4096 bytes at most. Raises OSError."""
        data = json.dumps(record).encode()
        assert len(data) <= _RESERVED_BYTES
        with self._room.open("r+b") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._room.replace(self._path)
