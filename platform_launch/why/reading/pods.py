"""Which pod and node the lines of kubectl are about: of lists of pods, of their descriptions and events."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

from platform_launch.why.lines.line import NOWHERE, Location

LINES_OF_A_DESCRIPTION = 200
_OF_A_POD = re.compile(
    r"[ \t]+(?:Reason|Message|Exit Code|exitCode|State|Last State):[ \t]|(?:Reason|Message):(?:\t|[ ]{2})"
    r"|.{0,120} kubelet[ ,]"
    r"|.{0,120}\b(?:Normal|Warning)\s{1,20}\w{1,60}\s{1,20}pod/|.{0,500} pod=\"[\w.-]{1,253}/"
)
# What a container's state says only of its form, in a description or a status in YAML.
_STATE = re.compile(r"[ \t]+(?:- )?(?:(?:Last )?State|[Rr]eason):[ \t]+\w{1,40}\s*$")
# An event in a list names its pod, as a kubelet's own line does, and one of an old Kubernetes its node.
_IN_EVENT = re.compile(
    r"\bpod(?:/|=\"(?:[\w.-]{1,253}/)?)(?P<pod>[\w.-]{1,253})[\s\"]|\bkubelet, (?P<host>[\w.-]{1,253})\s"
)
_ASSIGNED = re.compile(
    rb"Successfully assigned (?:[\w.-]{1,253}/)?(?P<pod>[\w.-]{1,253}) to (?P<host>[\w.-]{1,253})"
)
_NAMED = re.compile(r"\b[Pp]ods?[/=]")
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
# A command behind a prompt, or at the top of a log, whose output then follows; its options that take a value.
_SHOWS = re.compile(
    r"(?P<prompt>[^\s$#]{0,100}[$#] ?)?\s{0,4}(?:kubectl|oc) (?P<words>.*\b(?:logs|exec|attach) .+)"
)
_SHOW = frozenset(("attach", "exec", "logs"))
_WITH_VALUE = frozenset(
    """
    --container --context --kubeconfig --limit-bytes --namespace --selector --since --since-time --tail
    -c -l -n
    """.split()  # noqa: SIM905
)
_DESCRIBES = re.compile(
    rb"(?:[^\s$#]{0,100}[$#] ?)?\s{0,4}(?:kubectl|oc) (?P<words>(?:\S{1,100} ){0,6}?describe [^|;&]{1,300})"
)
_POD_NAME = re.compile(r"(?:pods?/|po/)?(?P<pod>[a-z0-9][a-z0-9.-]{0,252})")
_PODS = frozenset(("po", "pod", "pods"))
_TOP_LINES = 3
LINES_BELOW_A_COMMAND = 300
_NAME = re.compile(rb"Name:[ \t]+(?P<pod>[a-z0-9][a-z0-9.-]{0,252})\s*$")


def pod_shown(number: int, preceding: Iterable[bytes]) -> Location:
    """Return the pod whose output a line is of, as the nearest command above it says; nearest first."""
    for distance, data in enumerate(preceding, 1):
        if b"kubectl " not in data and b"oc " not in data:
            continue
        command = _SHOWS.fullmatch(data.decode(errors="replace").strip())
        if command and (command["prompt"] or number - distance <= _TOP_LINES):
            return _of_command(command["words"])
    return NOWHERE


def _of_command(words: str) -> Location:
    """Return the only pod that the words of a command name."""
    if "kubectl " in words:
        return NOWHERE  # several commands, of which the log does not say which it shows
    rest, shows = iter(words.split()), False
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif word in _SHOW:
            shows = True
        elif not word.startswith("-"):
            named = _POD_NAME.fullmatch(word) if shows else None
            return Location(pod=named["pod"]) if named else NOWHERE
    return NOWHERE


def pod_in_row(text: str) -> Location:
    """Return the pod, and its node if it tells it, that a row of `kubectl get pods` is about."""
    row = _ROW.match(text) or _CHOSEN_ROW.match(text)
    return Location(pod=row["pod"], host=row["host"]) if row else NOWHERE


def speaks_of_a_pod(text: str) -> bool:
    """Tell whether a line may be one of a pod's description, or an event that a kubelet reports."""
    return _OF_A_POD.match(text) is not None


def tells_a_state(text: str) -> bool:
    """Tell whether a line of a pod's description only names a state, as `Reason: Error` does."""
    return _STATE.match(text) is not None


def pod_of(text: str, named: str | None, preceding: Iterable[bytes]) -> Location:
    """Return the pod and the node that a line is about, if it or the lines above tell them; nearest first.

    ``named`` is the pod that the line's message names.
    """
    said = _IN_EVENT.search(text)
    host = said["host"] if said else None
    pod = named or (said["pod"] if said else None)
    for data in preceding if host is None else []:
        if assigned := _ASSIGNED.search(data):
            if pod in (None, assigned["pod"].decode()):
                return Location(pod=assigned["pod"].decode(), host=assigned["host"].decode())
        elif node := _NODE.match(data):
            host = node["host"].decode()
        elif described := _named_in_description(data):
            return Location(pod=described, host=host) if pod in (None, described) else Location(pod=pod)
    return Location(pod=pod, host=host)


def _named_in_description(data: bytes) -> str | None:
    """Return the pod that the first line of a description names, or the command whose output that is."""
    if named := _NAME.match(data):
        return named["pod"].decode()
    if b" describe " not in data or (command := _DESCRIBES.fullmatch(data.strip())) is None:
        return None
    words, named_so = iter(command["words"].decode(errors="replace").split()), list[str]()
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            named_so.append(word)
    kind, _, name = " ".join(named_so[1:]).replace("/", " ").partition(" ")
    return name if kind in _PODS and _POD_NAME.fullmatch(name) else None


def was_placed(text: str, following: Iterable[bytes]) -> bool:
    """Tell whether the lines below one that says that a pod found no node say that it then had one."""
    of_this = takewhile(lambda data: _NAME.match(data) is None, following)
    assigned = [found["pod"].decode() for data in of_this if (found := _ASSIGNED.search(data))]
    return bool(assigned) and (not _NAMED.search(text) or any(_names(text, pod) for pod in assigned))


def of_same_pod(text: str, following: Iterable[bytes]) -> list[bytes]:
    """Return the lines that may be of the pod that an event names: those which name no other one."""
    of = _EVENT_OF.search(text.encode())
    return [
        data for data in following if not of or not (other := _EVENT_OF.search(data)) or other[0] == of[0]
    ]


def _names(text: str, pod: str) -> bool:
    """Tell whether a text names a pod, and not one whose name only begins or ends like it."""
    return re.search(rf"(?<![\w.-]){re.escape(pod)}(?![\w-]|\.\w)", text) is not None
