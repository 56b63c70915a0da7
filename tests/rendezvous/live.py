"""A coordinator and participants over a real TCPStore, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.membership import Change
from platform_launch.rendezvous.messages import ConsoleLine, Message
from platform_launch.rendezvous.participant import Participant
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.run.state import PURPOSE as RUN
from platform_launch.rendezvous.store import Store
from tests.lab.waiting import LIMIT_S as LIMIT_S
from tests.rendezvous.nodes import fingerprint


@dataclass(frozen=True)
class Health(Message):
    """A value that nodes refresh."""

    temperature: int


@dataclass(frozen=True)
class Question(Message):
    """Something one node asks of others."""

    text: str


@dataclass(frozen=True)
class Reply(Message):
    """What it is answered."""

    text: str


@dataclass(frozen=True)
class Bulletin(Message):
    """What the coordinator publishes."""

    text: str


PURPOSE = Purpose("test", (Health, Question, Reply, Bulletin, *RUN.messages))


@dataclass
class Live:
    """Node 0's coordinator in a thread, and the means to come to it."""

    coordinator: Coordinator
    store: Store
    secret: Secret | None
    said: list[ConsoleLine]
    changes: list[Change] = field(default_factory=list)
    halted: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connections: list[Store] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        return [line.text for line in self.said if line.level == "WARN"]

    def connect(self) -> Store:
        """Connect to the store until the rendezvous ends."""
        self.connections.append(Store.connect("127.0.0.1", self.store.port, limit_s=LIMIT_S))
        return self.connections[-1]

    def participant(
        self,
        rank: int,
        *,
        secret: Secret | str | None = "same",
        spare: bool = False,
        purpose: Purpose = PURPOSE,
        **changes: Any,
    ) -> Participant:
        """Bring a node that has not joined yet."""
        me = fingerprint(rank, self.coordinator.announcement.nnodes, **changes)
        held = self.secret if isinstance(secret, str) else secret
        return Participant(self.connect(), me, purpose=purpose, secret=held, spare=spare)

    def joined(self, rank: int, **changes: Any) -> Participant:
        """Bring a node and wait until it has a place."""
        node = self.participant(rank, **changes)
        node.join()
        until(lambda: node.seat is not None, node)
        return node


def until(true: Callable[[], bool], *nodes: Participant) -> None:
    """Wait until something is true, while nodes give signs of life."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        for node in nodes:
            node.heartbeat()
        time.sleep(0.02)


@contextmanager
def live(
    nnodes: int = 2,
    *,
    secret: Secret | None = None,
    spares: int = 0,
    values: tuple[type[Message], ...] = (Health,),
    job: str = "",
) -> Iterator[Live]:
    """Serve a rendezvous whose coordinator looks every few milliseconds."""
    said: list[ConsoleLine] = []
    store = Store.serve(0, limit_s=LIMIT_S)
    coordinator = Coordinator(
        store,
        fingerprint(0, nnodes),
        purpose=PURPOSE,
        say=said.append,
        secret=secret,
        spares=spares,
        values=values,
        job=job,
    )
    made = Live(coordinator, store, secret, said)
    ended = threading.Event()

    def lead() -> None:
        while not ended.is_set():
            with made.lock:
                if not made.halted.is_set():
                    made.changes.extend(coordinator.step())
            time.sleep(0.02)

    thread = threading.Thread(target=lead)
    thread.start()
    try:
        yield made
        assert thread.is_alive(), "the coordinator ended by itself"
    finally:
        ended.set()
        thread.join()
        for connected in (*made.connections, store):
            connected.close()
