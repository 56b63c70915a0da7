"""What a launcher and its meeting process say to each other: one message a line, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Message:
    """Base of all messages; each subclass is known on the wire by its name."""

    kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message.kinds[cls.__name__] = cls


# From the launcher.


@dataclass(frozen=True)
class Invitation(Message):
    """Where to meet, and what this node brings (``Fingerprint.to_json``).

    ``grace_s`` is how long a training may take to end on SIGTERM. ``rejoining`` is set when the training runs
    already and only its meeting process was lost.
    """

    fingerprint: str
    master_addr: str
    master_port: int
    meeting_port: int
    roll_call_timeout_s: float
    node_timeout_s: float
    grace_s: float
    log_path: str
    rejoining: bool = False


@dataclass(frozen=True)
class Stopping(Message):
    """All nodes must end, because this one does. ``kind`` and ``exit_code`` are those of ``store.End``;
    ``reason`` says what happened to this node.
    """

    kind: str
    reason: str
    exit_code: int


@dataclass(frozen=True)
class Ended(Message):
    """The training of this node has ended. ``why_not_again`` counts where this is node 0; empty: restart."""

    exit_code: int
    stopped_by: str | None
    words: tuple[str, ...]
    why_not_again: str


# From the meeting.


@dataclass(frozen=True)
class Say(Message):
    """A line for the user."""

    level: str
    text: str


@dataclass(frozen=True)
class Go(Message):
    """All nodes are there and agree. ``restarts_used`` is the highest that any of them counts."""

    restarts_used: int
    text: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Leave(Message):
    """The job cannot start; every node leaves with this code."""

    exit_code: int
    reason: str
    hint: str


@dataclass(frozen=True)
class Stop(Message):
    """The training must end because of another node: in good order with the full grace time, or at once."""

    reason: str
    in_good_order: bool


@dataclass(frozen=True)
class Settled(Message):
    """The run is over on all nodes.

    ``exit_code`` is the job's, 0 when every node finished or one was told to end. ``first_failed`` is the
    rank of the node whose failure the others followed.
    """

    exit_code: int
    lines: tuple[str, ...]
    restart: bool
    first_failed: int | None = None


@dataclass(frozen=True)
class Alone(Message):
    """Node 0 has finished and closed the meeting: this node goes on without."""


@dataclass(frozen=True)
class Lost(Message):
    """The meeting cannot be reached any more."""

    reason: str
    words: tuple[str, ...]


def encode(message: Message) -> bytes:
    """Return the line of a message."""
    return json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read :func:`encode`. Raises ValueError for anything else."""
    try:
        kind, values = json.loads(line)
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return Message.kinds[kind](**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a message of the meeting: {line[:80]!r}") from error
