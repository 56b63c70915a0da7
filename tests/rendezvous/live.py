"""A coordinator and participants over real connections, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.client import Opened, open_one
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.listening import listen
from platform_launch.rendezvous.loop import event_loop
from platform_launch.rendezvous.membership import Change
from platform_launch.rendezvous.messages import ConsoleLine, Message
from platform_launch.rendezvous.participant import NodeSession, Participant, hello_of
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.run.state import PURPOSE as RUN
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
    """The answer to it."""

    text: str


@dataclass(frozen=True)
class Bulletin(Message):
    """What the coordinator publishes."""

    text: str


PURPOSE = Purpose("test", (Health, Question, Reply, Bulletin, *RUN.messages))


@dataclass
class Live:
    """Node 0's coordinator in a thread, and functions to connect to it."""

    coordinator: Coordinator
    port: int
    secret: Secret | None
    said: list[ConsoleLine]
    changes: list[Change] = field(default_factory=list)
    halted: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    nodes: list[Participant] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        return [line.text for line in self.said if line.level == "WARN"]

    def opened(
        self, rank: int, *, secret: Secret | None, purpose: Purpose = PURPOSE, mark: str = "", **changes: Any
    ) -> Opened:
        """Connect to the coordinator as a node, up to the first lines."""
        me = fingerprint(rank, self.coordinator.welcome.nnodes, **changes)
        hello = hello_of(me, purpose, secret, mark)
        found = event_loop().call(open_one("127.0.0.1", self.port, hello, secret), LIMIT_S)
        assert isinstance(found, Opened), found
        return found

    def participant(
        self,
        rank: int,
        *,
        secret: Secret | str | None = "same",
        spare: bool = False,
        purpose: Purpose = PURPOSE,
        session: NodeSession | None = None,
        details: Message | None = None,
        **changes: Any,
    ) -> Participant:
        """Connect a node that has not joined yet."""
        me = fingerprint(rank, self.coordinator.welcome.nnodes, **changes)
        held = self.secret if isinstance(secret, str) else secret
        opened = self.opened(rank, secret=held, purpose=purpose, **changes)
        node = Participant(
            opened, me, purpose=purpose, secret=held, spare=spare, details=details, session=session
        )
        self.nodes.append(node)
        return node

    def joined(self, rank: int, **changes: Any) -> Participant:
        """Connect a node and wait until it has joined."""
        node = self.participant(rank, **changes)
        node.join()
        until(lambda: node.membership is not None, node)
        return node


def until(true: Callable[[], bool], *nodes: Participant) -> None:
    """Wait until something is true, while nodes handle their messages."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        for node in nodes:
            node.step()
        time.sleep(0.02)


@contextmanager
def live(
    nnodes: int = 2, *, secret: Secret | None = None, mark: str = "", purpose: Purpose = PURPOSE
) -> Iterator[Live]:
    """Serve a rendezvous whose coordinator steps every few milliseconds."""
    said: list[ConsoleLine] = []
    listener = listen((0,), nnodes)
    port = listener.getsockname()[1]
    coordinator = Coordinator(
        [listener], fingerprint(0, nnodes), purpose=purpose, log=said.append, secret=secret, mark=mark
    )
    made = Live(coordinator, port, secret, said)
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
        for node in made.nodes:
            node.close()
        coordinator.close()
