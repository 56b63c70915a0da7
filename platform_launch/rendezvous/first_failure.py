"""Which of several failures came first, and which lines of a log explain it best."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from platform_launch.events import marked
from platform_launch.rendezvous.ending import EndKind, NodeEnding

_MOST_LINES = 5
_LONGEST_LINE = 240

# Messages of a process whose peer is gone: a consequence, not a cause.
_CONSEQUENCE = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|recvBytes|remote process exited"
    r"|watchdog|heartbeat|socket timeout|SIGTERM|connectFullMesh|store->get",
    re.IGNORECASE,
)
# gloo's: "Connection closed by peer [10.0.0.2]:4711".
_PEER = re.compile(r"\[([0-9a-fA-F.:]{3,45})\]:\d+")
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Failure|Iteration)\b(?::|$)")
# Prefixes of a line: our node, torch's rank.
_LABELS = re.compile(r"^(?:\[(?:node \d+|rank\d+)\]:? ?)+")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def first_failure(
    endings: Sequence[NodeEnding], rank_of: Mapping[str, int] | None = None
) -> NodeEnding | None:
    """Return the failure that caused the others, None if no node failed by itself.

    When a process dies, its peers fail within milliseconds. So a failure with a lost connection counts only
    if there is no other, and the earliest wins. If all report lost connections, it is the node that these led
    to; ``rank_of`` maps its addresses to its rank.
    """
    failures = [ending for ending in endings if ending.kind in (EndKind.FAILED, EndKind.LEFT)]
    failures.sort(key=lambda ending: ending.ended_at_s)
    own = [ending for ending in failures if not blames_others(ending)]
    if own or not failures:
        return next(iter(own), None)
    votes = Counter(rank for ending in failures for rank in blamed_nodes(ending, rank_of or {}))
    if not votes:
        return failures[0]
    blamed = votes.most_common(1)[0][0]
    of_blamed = next((ending for ending in endings if ending.node_rank == blamed), failures[0])
    if of_blamed.kind is EndKind.FINISHED:
        follows = failures[0]
        return replace(of_blamed, kind=EndKind.LEFT, exit_code=follows.exit_code, cause=follows.cause)
    return of_blamed if of_blamed.kind is EndKind.FAILED else failures[0]


def blamed_nodes(ending: NodeEnding, rank_of: Mapping[str, int]) -> set[int]:
    """Return the nodes that the lost connections of an ending led to, as far as addresses are known."""
    evidence = " ".join(ending.cause.evidence) if ending.cause is not None else ""
    return {rank_of[address] for address in _PEER.findall(evidence) if address in rank_of}


def blames_others(ending: NodeEnding) -> bool:
    """Return whether the log lines of an ending only report a lost peer."""
    evidence = ending.cause.evidence if ending.cause is not None else ()
    return _CONSEQUENCE.search(" ".join(evidence)) is not None


def last_words(log: str) -> tuple[str, ...]:
    """Return the last lines of a job's output that explain best why it ended, five at most.

    The first traceback is the cause: other ranks and torchrun's own report follow.
    """
    lines = [_LABELS.sub("", _ANSI.sub("", line)).rstrip() for line in log.replace("\r", "\n").splitlines()]
    lines = [line[:_LONGEST_LINE] for line in _of_the_training(lines) if line.strip(" ^~")]
    for start, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            for end in range(start + 1, len(lines)):
                if not lines[end].startswith(" ") and _EXCEPTION.match(lines[end]):
                    return tuple(lines[max(start + 1, end - 2) : end + 1])
    return tuple(lines[-_MOST_LINES:])


def _of_the_training(lines: Sequence[str]) -> list[str]:
    """Remove the launcher's own lines, and all that precede the run."""
    output: list[str] = []
    for line in lines:
        of_launcher = marked(line)
        if of_launcher is None:
            output.append(line)
        elif of_launcher[1].id == "roll-call-complete":
            output.clear()
    return output
