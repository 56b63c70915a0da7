"""A node at the meeting: every node has one, node 0 too. Each method is a few questions to the store."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace

from platform_launch.rollcall import store as place
from platform_launch.rollcall.cause import Report
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.store import End, Outcome, State, Store


class Guest:
    """Presents a node and listens. Methods raise RuntimeError when the store is gone.

    ``host`` is the identity of the launcher that hosts the meeting, empty where this is no meeting of ours.
    """

    def __init__(self, store: Store, fingerprint: Fingerprint) -> None:
        self.store = store
        self.fingerprint = fingerprint
        self._beats = 0
        self._words: tuple[str, ...] = ()
        self.ticket = -1
        self.host = store.get(place.HOST).decode() if store.check([place.HOST]) else ""

    def arrive(self) -> None:
        """Take a ticket and leave the fingerprint."""
        self.ticket = self.store.add(place.ARRIVALS, 1) - 1
        self.store.set(f"words/{self.ticket}", "[]")
        self.beat()
        present = replace(self.fingerprint, wall_clock_s=time.time())
        self.store.set(f"arrival/{self.ticket}", present.to_json())

    def succeed(self, earlier: Guest) -> None:
        """Take over the place of a guest whose connection broke."""
        self.ticket, self._beats, self._words = earlier.ticket, earlier._beats, earlier._words

    def beat(self, words: tuple[str, ...] = ()) -> None:
        """Show that this node lives, and what its training said last."""
        self.store.set(f"beat/{self.ticket}", str(self._beats))
        self._beats += 1
        if words != self._words:
            self.store.set(f"words/{self.ticket}", json.dumps(words))
            self._words = words

    def withdraw(self) -> None:
        """Say that this node will beat no more."""
        self.store.set(f"beat/{self.ticket}", place.GONE)

    def state(self) -> State:
        """Return what node 0 makes of the meeting."""
        return place.read(State, self.store.get(place.STATE))

    def end(self) -> End | None:
        """Return the reason to stop, once there is one. The answer also proves that the store lives."""
        return place.read(End, self.store.get(place.END)) if self.store.check([place.END]) else None

    def outcome(self) -> Outcome | None:
        """Return what came out in the end, once it is settled."""
        return (
            place.read(Outcome, self.store.get(place.SETTLED)) if self.store.check([place.SETTLED]) else None
        )

    def ask_to_stop(self, end: End) -> None:
        """Give all nodes a reason to stop, unless they have one already."""
        self.store.compare_set(place.END, "", place.to_json(end))

    def report(self, report: Report, why_not_again: str) -> None:
        """Say how this node's training ended."""
        values = {"report": asdict(report), "why_not_again": why_not_again}
        self.store.set(f"report/{report.node_rank}", json.dumps(values))
        self.store.add(place.REPORTS, 1)

    def last_words_of(self, ticket: int) -> tuple[str, ...]:
        """Return what a node's training said last."""
        return tuple(json.loads(self.store.get(f"words/{ticket}")))

    def leave(self) -> None:
        """Say that this node needs the meeting no longer."""
        self.store.set(f"left/{self.ticket}", "")
