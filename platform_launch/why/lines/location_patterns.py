"""Patterns for a writer's place (rank, host, pod) in a line or in a file's name."""

from __future__ import annotations

import re

from platform_launch.why.lines.literals import Guarded

# Names in a host's position that do not identify a machine to others.
_LOCAL = ("localhost", "localhost.localdomain", "127.0.0.1", "0.0.0.0", "::1", "none", "null")  # noqa: S104 - a name, not bound
_RANK = re.compile(
    r"(?P<kind>[A-Za-z]{2,20}[ _-])?(?<![A-Za-z])rank(?:\s?[=:]\s?|[ _-])?(?P<number>\d{1,7})(?!\d)"
    r"(?! - \d{1,7}(?!\d|[:.-]\d))",  # a range of ranks is not a place
    re.I,
)
# Ranks within a part of the job, and of matrices: they do not give the process's rank in the whole job.
_PARTS = frozenset(
    """
    adapter attn context cp data dp ep expert fsdp group lora low matrix model moe mp parallel pipeline pp
    replica sequence shard sp stage tensor tp
    """.split()  # noqa: SIM905
)
_KINDS = {"local": "local_rank", "node": "node", "machine": "node"}
_BRACKET = re.compile(r"\[([^][]{0,80}\brank[^][]{0,80})\]", re.I)
# torch's process groups: only in the first one is a rank's number that of the whole job.
PART_GROUP = re.compile(r"\bPG (?:ID )?[1-9]")
# Text further on in a line belongs to another one that was joined to it.
_WITHIN = 300
_NAMED = Guarded(
    r"^[\w.-]{1,100}:rank(\d{1,7})(?:\.\S{1,100})?: |\bRank (\d{1,7})\]|\b(?:Rank|Rank )\[(\d{1,7})\]"
    r"|\bRankID:(\d{1,7})\b|\[process=(\d{1,7})\]|\[rank(\d{1,7})\]:"
    # In a sentence; "waiting on rank 3" is about another rank, and an exception may be, too.
    r"|^(?!(?:\w+\.)*[a-z]\w*(?:Error|Exception): ).{0,300}?"
    r"(?<!\bwait )(?<!\bwaiting )(?<!\bwaits )(?<!\bblocked )"
    r"\bon(?: global)? rank:? ?(\d{1,7})\b(?! ?[-,/] ?\d| and \d)",
    any_case=True,
)
_IP = re.compile(r"\bip=([\d.]+|[\da-f:]+)")
# Not a Python module, which loggers write there, too: no host name has an underscore after a dot.
_HOST_ALONE = re.compile(
    r"(?!(?:std)?(?:out|err)(?:or)? *[:|]|[\w.-]{0,200}\.[a-z0-9]*_|(?:accelerate|datasets|deepspeed|fairseq"
    r"|lightning|megatron|nemo|torch|transformers|vllm)\.)([A-Za-z0-9][\w.-]{0,252}) *[:|] *"
)
_HOST_IN_BRACKETS = re.compile(
    r"[\[<](?:host[=:] ?)?"
    r"((?:[a-z][a-z-]*-)?(?:node|worker|master|host|algo|ip|gn|cn|compute)-?\d[\w.-]{0,200})"
    r"(?::\d{1,10})?[\]>]:? *"
)
_POD_AND_CONTAINER = re.compile(r"([a-z0-9][a-z0-9.-]*-[a-z0-9.-]+)[ \t]+(?:[a-z0-9-]+[ \t]+)?")
# NCCL's, its tests', PSM's, UCX's and Open MPI's own prefixes. Loggers write
# levels, steps and epochs in the way in which Open MPI writes hosts.
_HOST_AND_PROCESS = re.compile(
    r"(?:[a-z][a-z0-9-]{1,40} (?=\S+:\d+:\d+ \[\d+\] ))?"  # a column of the container's name
    r"(\w[\w.-]{0,100}):(?:\d+:\d+ \[\d+\]| Test (?:CUDA|NCCL) failure|rank\d{1,7}(?:\.\S{1,100})?:) "
    r"|\[(?![\w.-]*\.(?:py|cc?|cpp|cu|go|rs)\b)"
    r"(?:(\w[\w.-]*):(?:\d+ :\d{1,3}(?::\d+)?|(?P<pid>\d+):\d{1,3}:(?P=pid))"
    r"|(?!(?i:(?:cuda|epoch|iter|rank|step)[_-]?\d+|gpu[_-]?\d):)"
    r"((?=\w*[\d.-])[A-Za-z][\w.-]*):(?:\d+:\d{1,3}(?::\d+)?|\d{5,7}))\] "
)
# The GPU of the process that warns; 0 also if NCCL does not know it yet, unless a CUDA call failed, or it had
# memory to register.
_WARNS_OF_GPU = re.compile(
    r"(?:[a-z][a-z0-9-]{1,40} )?[\w.-]{0,100}:\d+:\d+ "
    r"\[([1-9]\d?|0(?=\] .{0,160}NCCL WARN .{0,40}\b(?:(?i:cuda|hip) failure\b|ibv_reg_)))\] "
    r".{0,120}?NCCL WARN "
)
# NAMD's message about a failure on a GPU.
_OF_NAMD = re.compile(r" ?on Pe \d{1,6} \(([\w.-]{1,100}) device (\d{1,2}) pci ")
# In a file's name: "multi-node-2" counts nodes, "lora-rank-64" is a matrix's.
FILE_NODE = re.compile(r"(?:^|(?<!multi)(?<!single)[./_-])node[._-]?(\d{1,6})(?:[._-]|$)")
FILE_RANK = re.compile(
    r"(?:^|(?<!local)(?<!node)(?<!group)(?<!lora)(?<!low)[./_-])"
    # The second form is Azure Machine Learning's, one file per process.
    r"(?:rank[._-]?|std_log_process_)(\d{1,7})(?:[._-]|$)"
)
_FILE_ALONE = re.compile(r"([\w./=@-]{1,200}\.(?:log|out|err|txt|stdout|stderr)) *[:|] *")
_RANK_ALONE = re.compile(r"\[(\d{1,6})\]:? *")


def ranks_in(text: str) -> dict[str, int]:
    """Return the writer's ranks in a text, by the names of Location's fields.

    A text that names several ranks of one kind is about others.
    """
    ranks: dict[str, int] = {}
    for found in _RANK.finditer(text):
        kind = (found["kind"] or "").strip(" _-").lower()
        if kind in _PARTS:
            continue
        name = _KINDS.get(kind, "rank")
        if ranks.setdefault(name, int(found["number"])) != int(found["number"]):
            return {}
    return ranks


def ranks_within(text: str) -> dict[str, int]:
    """Return the ranks that a line names in brackets, as loggers do."""
    if "rank" not in text and "Rank" not in text and "RANK" not in text and "[process=" not in text:
        return {}
    brackets = [bracket[1] for bracket in _BRACKET.finditer(text, 0, _WITHIN)]
    if brackets:
        # Options of a command show how it was started: LoRA's --rank, or the last process's.
        brackets = [bracket for bracket in brackets if not PART_GROUP.match(bracket) and "'--" not in bracket]
        return next((ranks for ranks in map(ranks_in, brackets) if ranks), {})
    named = _NAMED.search(text, _WITHIN)
    return {"rank": int(next(number for number in named.groups() if number))} if named else {}


def host_of(text: str) -> str | None:
    """Return the host in a library's line prefix, None if there is none."""
    found = _HOST_AND_PROCESS.match(text) or _OF_NAMD.match(text)
    return next(filter(None, found.groups())) if found else None


def gpu_of(text: str) -> str | None:
    """Return the GPU of the process in a message of NCCL or NAMD, None if there is none."""
    if "NCCL WARN " in text:
        return found[1] if (found := _WARNS_OF_GPU.match(text)) else None
    return found[2] if (found := _OF_NAMD.match(text)) else None


def place_in(head: str) -> dict[str, str | int]:
    """Return the place that a prefix of no known form seems to name."""
    if file := _FILE_ALONE.fullmatch(head):
        found = {"rank": FILE_RANK.search(file[1]), "node": FILE_NODE.search(file[1])}
        return {name: int(number[1]) for name, number in found.items() if number}
    place: dict[str, str | int] = {**ranks_in(head)}
    if number := _RANK_ALONE.fullmatch(head):
        place["rank"] = int(number[1])
    if address := _IP.search(head):
        place["host"] = address[1]
    elif host := _HOST_ALONE.fullmatch(head) or _HOST_IN_BRACKETS.match(head):
        place["host"] = host[1]
    elif pod := _POD_AND_CONTAINER.fullmatch(head):
        place["pod"] = pod[1]
    return place


def names_a_machine(host: str) -> bool:
    """Return whether a host's name identifies a machine."""
    return host.lower() not in _LOCAL
