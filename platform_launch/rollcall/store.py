"""The meeting place: the part of torch's TCPStore that is used, and the names of what lies in it.

roll call          identity of the hosting launcher: what listens here is a meeting of ours
state              what node 0 makes of it so far (State), read by all
arrivals           how many have come; each takes the next number as its ticket
arrival/TICKET     its fingerprint
beat/TICKET        a number that grows while it lives
words/TICKET       the last lines of its training's output
end                the first reason to stop, set once by whoever has it (End)
report/RANK        how the training of a node ended (Report)
reports            how many of them there are
settled            what came out in the end (Outcome), set by node 0
left/TICKET        there when a guest has read the outcome and needs the meeting no longer
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar

# No operation on a living store takes longer; one that does is given up by the caller's own clock.
OPERATION_LIMIT_S = 60.0

HOST, STATE, ARRIVALS, END = "roll call", "state", "arrivals", "end"
GONE = "gone"  # the last beat of a node that leaves before the run
REPORTS, SETTLED = "reports", "settled"


Note = TypeVar("Note")


class Store(Protocol):
    """What this project uses of ``torch.distributed.Store``. ``get`` waits for a key that is not there."""

    def set_timeout(self, timeout: timedelta, /) -> None: ...  # noqa: D102
    def set(self, key: str, value: str, /) -> None: ...  # noqa: D102
    def get(self, key: str, /) -> bytes: ...  # noqa: D102
    def check(self, keys: list[str], /) -> bool: ...  # noqa: D102
    def add(self, key: str, amount: int, /) -> int: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, value: str, /) -> bytes: ...  # noqa: D102
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...  # noqa: D102


def open_store(host: str, port: int, *, hosting: bool, limit_s: float = OPERATION_LIMIT_S) -> Store:
    """Open the meeting place, or host it on all addresses of this machine.

    Raises RuntimeError (torch.distributed.DistError) when that cannot be done.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store: Store = TCPStore(host, port, None, hosting, timedelta(seconds=limit_s), wait_for_workers=False)
    store.set_timeout(timedelta(seconds=OPERATION_LIMIT_S))
    return store


def has_all(store: Store, keys: list[str]) -> bool:
    """Tell whether every key is there; TCPStore would not take an empty list."""
    return not keys or store.check(keys)


@dataclass(frozen=True)
class State:
    """What node 0 makes of the meeting so far.

    ``phase``: ``waiting``, ``running``, ``refused``, or ``over`` when the run has ended and will start again.
    ``text`` says who is absent. ``tickets`` are those of the nodes that run together, by rank.
    ``turned_away`` maps the tickets of strangers to the reason.
    """

    phase: str
    text: str = ""
    exit_code: int = 0
    reasons: tuple[str, ...] = ()
    hint: str = ""
    warnings: tuple[str, ...] = ()
    restarts_used: int = 0
    tickets: tuple[int, ...] = ()
    turned_away: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """The first reason to stop, the node it is about, and what its training said last.

    ``kind``: ``failed``, ``vanished``, or ``asked``: nothing is broken and there is time for a checkpoint.
    """

    kind: str
    node_rank: int
    reason: str
    exit_code: int
    words: tuple[str, ...] = ()

    @property
    def in_good_order(self) -> bool:
        """Whether the trainings may take their whole grace time."""
        return self.kind == "asked"


@dataclass(frozen=True)
class Outcome:
    """How the run ended for all. ``closed``: node 0 is done, and whoever still trains goes on alone.

    ``first_failed``: see ``lines.Settled``.
    """

    exit_code: int
    lines: tuple[str, ...] = ()
    restart: bool = False
    closed: bool = False
    first_failed: int | None = None


def to_json(value: State | End | Outcome) -> str:
    """Return the text that is stored."""
    return json.dumps(asdict(value), ensure_ascii=False)


def read(kind: type[Note], text: bytes) -> Note:
    """Read :func:`to_json` back."""
    values: dict[str, Any] = json.loads(text)
    fields = {name: tuple(item) if isinstance(item, list) else item for name, item in values.items()}
    return kind(**fields)
