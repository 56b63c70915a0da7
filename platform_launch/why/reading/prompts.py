"""Which machine a shell's prompt names, above the output of a command that tells of the machine it ran on."""

from __future__ import annotations

import re
from collections.abc import Iterable

LINES_OF_OUTPUT = 60
# user@host:folder# command, user@host folder % command, [user@host folder]$ command.
_PROMPT = re.compile(
    rb"(?:\([\w.-]{1,60}\) ?){0,3}\[?[\w.-]{1,60}@(?P<host>[A-Za-z][\w.-]{0,200})"
    rb"(?:[: ][^\r\n#$%]{0,120})?\]? ?[#$%] +(?P<command>[^\r\n]{1,300})"
)
# Not of a login node, from where a job was only started; torchrun starts all of its processes where it runs.
_OF_THE_MACHINE = re.compile(
    rb"(?:sudo +)?(?:amd-smi|dmesg|hl-smi|ibstat|ibv_devinfo|journalctl|lspci|npu-smi|nvidia-smi|rocm-smi)\b"
    rb"|(?:[A-Z]\w{1,60}=[^ ]{0,200} +){0,9}"
    rb"(?:torchrun|python[\d.]{0,6} +-m +torch\.distributed\.(?:launch|run)) "
)

# What a shell says of a program that a signal ended, right above its next prompt.
_ENDED = re.compile(
    r"(?:Killed|Segmentation fault|Bus error|Aborted|Illegal instruction)(?: \(core dumped\))?\s*$"
)
_NEXT_PROMPT = re.compile(
    rb"(?:\([\w.-]{1,60}\) ?){0,3}\[?[\w.-]{1,60}@(?P<host>[A-Za-z][\w.-]{0,200})"
    rb"[: ][^\r\n#$%]{0,120}?\]? *[#$%](?:\s|$)"
)


def host_of_shell(text: str, following: Iterable[bytes]) -> str | None:
    """Return the host whose shell says how a program ended, if its prompt follows."""
    below = next((data for data in following if data.strip()), b"") if _ENDED.match(text) else b""
    prompt = _NEXT_PROMPT.match(below)
    return prompt["host"].decode() if prompt else None


def host_of_prompt(preceding: Iterable[bytes]) -> str | None:
    """Return the host that the nearest prompt above names, if its command tells of that host."""
    for data in preceding:
        if prompt := _PROMPT.match(data):
            return prompt["host"].decode() if _OF_THE_MACHINE.match(prompt["command"]) else None
    return None
