"""Which pod and node kubectl's lines are about: in lists of pods, descriptions and events."""

from __future__ import annotations

import re
from collections.abc import Iterable

from platform_launch.why.lines.line import NOWHERE, Location

LINES_OF_A_DESCRIPTION = 200
_OF_A_POD = re.compile(
    r"[ \t]+(?:Reason|Message|Exit Code|exitCode|State|Last State):[ \t]|(?:Reason|Message):(?:\t|[ ]{2})"
    r"|.{0,120} kubelet[ ,]"
    r"|.{0,120}\b(?:Normal|Warning)\s{1,20}\w{1,60}\s{1,20}pod/|.{0,500} pod=\"[\w.-]{1,253}/"
)
# An event in a list names its pod, as does a kubelet's own line; one of an old Kubernetes names its node.
_IN_EVENT = re.compile(
    r"\bpod(?:/|=\"(?:[\w.-]{1,253}/)?)(?P<pod>[\w.-]{1,253})[\s\"]|\bkubelet, (?P<host>[\w.-]{1,253})\s"
)
_ASSIGNED = re.compile(
    rb"Successfully assigned (?:[\w.-]{1,253}/)?(?P<pod>[\w.-]{1,253}) to (?P<host>[\w.-]{1,253})"
)
_EVENT_OF = re.compile(rb"\bpod/[\w.-]+")
_NODE = re.compile(rb"Node:[ \t]+(?P<host>[\w.-]{1,253})/[\da-f.:]*\s*$")
# NAMESPACE NAME READY STATUS RESTARTS AGE, and of `-o wide` IP NODE and two columns more.
_ROW = re.compile(
    r"(?:[a-z0-9][a-z0-9-]{0,62}[ \t]+)?(?P<pod>[a-z0-9][a-z0-9.-]{0,252})[ \t]+\d{1,3}/\d{1,3}[ \t]+"
    r"[A-Z][A-Za-z:0-9]{1,60}[ \t]+\d{1,9}(?: \(\w{1,20} ago\))?[ \t]+\w{1,20}"
    r"(?:[ \t]+(?:[\da-f.:]+|<none>)[ \t]+(?P<host>[a-z0-9][\w.-]{0,252}))?(?:[ \t]|$)"
)
# With columns of the user's own choice: NAME, NAMESPACE, STATUS, NODE.
_CHOSEN_ROW = re.compile(
    r"(?P<pod>[a-z0-9][a-z0-9.-]{0,252})[ \t]{2,}(?:[a-z0-9][a-z0-9-]{0,62}[ \t]{2,})?"
    r"(?:Evicted|Failed|OOMKilled)[ \t]{2,}(?P<host>(?=[\w.]*[.-])[a-z0-9][\w.-]{0,252})[ \t]"
)
_NAME = re.compile(rb"Name:[ \t]+(?P<pod>[a-z0-9][a-z0-9.-]{0,252})\s*$")


def pod_in_row(text: str) -> Location:
    """Return the pod of a row of `kubectl get pods`, and its node if the row has it."""
    row = _ROW.match(text) or _CHOSEN_ROW.match(text)
    return Location(pod=row["pod"], host=row["host"]) if row else NOWHERE


def is_about_a_pod(text: str) -> bool:
    """Return whether a line may be part of a pod's description, or a kubelet's event."""
    return _OF_A_POD.match(text) is not None


def pod_of(text: str, named: str | None, preceding: Iterable[bytes]) -> Location:
    """Return the pod and the node of a line, if it or the lines above (nearest first) name them.

    ``named`` is the pod that the line's message names.
    """
    event = _IN_EVENT.search(text)
    host = event["host"] if event else None
    pod = named or (event["pod"] if event else None)
    for data in preceding if host is None else []:
        if assigned := _ASSIGNED.search(data):
            if pod in (None, assigned["pod"].decode()):
                return Location(pod=assigned["pod"].decode(), host=assigned["host"].decode())
        elif node := _NODE.match(data):
            host = node["host"].decode()
        elif described := _NAME.match(data):
            name = described["pod"].decode()
            return Location(pod=name, host=host) if pod in (None, name) else Location(pod=pod)
    return Location(pod=pod, host=host)


def of_same_pod(text: str, following: Iterable[bytes]) -> list[bytes]:
    """Return the lines that may be about an event's pod: those that name no other pod."""
    of = _EVENT_OF.search(text.encode())
    return [
        data for data in following if not of or not (other := _EVENT_OF.search(data)) or other[0] == of[0]
    ]
