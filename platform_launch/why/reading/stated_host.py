"""Which machine a job says at its beginning that it runs on, as the scripts of batch jobs print it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = r"(?P<host>[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,62}){0,8})"
# A device, or nobody.
_NO_HOST = re.compile(
    r"(?:auto|cpu|cuda|false|gpu|local|localhost|mps|n/?a|none|npu|null|port|rank|slurm|true|tpu|xpu)"
    r"(?:[:_-]?\d)?(?:\.localdomain)?",
    re.I,
)
_STARTS = r"(?i:running|runs|ran|started|starting|executing|executed|launched)"
_STATED = tuple(
    re.compile(pattern)
    for pattern in (
        rf"[^:=]{{0,40}}\bSLURM(?:_JOB)?_NODELIST(?: is)? *[:=] *{_NAME}$",
        rf"[^:=]{{0,40}}\bSLURMD_NODENAME(?: is)? *[:=] *{_NAME}$",
        rf"\W{{0,8}}(?i:(?:compute |current )?node ?name|host ?name)(?i: is)? *[:=] *{_NAME}$",
        rf"\W{{0,8}}(?i:(?:job )?node ?list|(?:compute |slurm |job )nodes?)(?i: is)? *[:=] *{_NAME}$",
        (
            rf".{{0,80}}\b{_STARTS} (?:\S{{1,40}} )?(?i:on|at)(?: the)?(?i: compute)?"
            rf" (?i:host|hostname|machine|nodes?|server):? *{_NAME}(?:[ .,!]*$|[,;] | at )"
        ),
        (
            rf".{{0,80}}\b{_STARTS} on:? *"
            r"(?=[\w.-]*(?:compute|host|node|worker)[\w-]*\d|[\w-]+\d[\w-]*(?:\.[a-z][\w-]*){2})"
            rf"{_NAME}(?: at |[,;] |\.?$)"
        ),
        rf".{{0,200}}\bon this host \({_NAME}\)",
        rf"Linux {_NAME} \d+\.\d+\.\d+\S* .*\bGNU/Linux$",
    )
)
_SEVERAL = re.compile(
    r"\b(?:n_?nodes|num[_-](?:nodes|machines)|nodes?|SLURM_(?:JOB_NUM_|N)NODES)\b[\"']?"
    r" *[:= ] *(?:[2-9]|\d{2,})\b"
    r"|\b(?:node|machine)[_-]rank[\"']? *[:= ] *[1-9]"
    r"|\bNODELIST *[:=] *[\w.-]*(?:\[|[\w.-], ?[\w.-])",
    re.I,
)


def stated_host(beginning: Iterable[str]) -> str | None:
    """Return the host that a log's first lines name as their own, None where they tell of several nodes."""
    hosts = set[str]()
    for text in beginning:
        if _SEVERAL.search(text):
            return None
        found = next((found for stated in _STATED if (found := stated.match(text.strip()))), None)
        if found is not None and _NO_HOST.fullmatch(found["host"]) is None:
            hosts.add(found["host"])
    short = {host.partition(".")[0] for host in hosts}
    return max(hosts, key=len) if len(short) == 1 else None
