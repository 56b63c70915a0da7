"""A node that cannot start, or was told to end between two starts, says so, and nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Queue

from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.connecting import CONNECT_LIMIT_S, Connector, JoinTarget, NeverReachedError
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.participant import Participant, RejectedError
from platform_launch.rendezvous.run.arriving import Arrival
from platform_launch.rendezvous.run.launcher import RunTask
from platform_launch.rendezvous.run.state import RunPhase, RunState
from platform_launch.rendezvous.store import Store, StoreError

_LIMIT_S = 10.0
_PAUSE_S = 0.1


def refuse(
    target: JoinTarget,
    me: Fingerprint,
    *,
    elsewhere: Sequence[JoinTarget] = (),
    obstacle: Callable[[JoinTarget, Participant], str] = lambda _target, _found: "",
    limit_s: float = _LIMIT_S,
    pause: Callable[[float], None] = time.sleep,
    say: Callable[[Message], None] = lambda _line: None,
    connect: Callable[..., Store] = Store.connect,
) -> None:
    """Come as ``me``, who cannot start, and leave once node 0 has heard it; give up after a while.

    The rest is that of a ``Connector``: the nodes may gather at another place by now.
    """
    connector = Connector(
        replace(target, me=me),
        timeout_s=limit_s,
        answer_limit_s=CONNECT_LIMIT_S,
        pause=pause,
        say=say,
        elsewhere=[replace(other, me=me) for other in elsewhere],
        obstacle=obstacle,
        connect=connect,
    )
    deadline = time.monotonic() + limit_s
    with suppress(NeverReachedError, RejectedError, StoreError):
        participant = connector.join()
        while time.monotonic() < deadline:
            participant.heartbeat()
            state = participant.state(RunState)
            if state is not None and state.phase is not RunPhase.WAITING:
                break
            pause(_PAUSE_S)
        participant.leave()


def refuse_without_torch(
    task: RunTask,
    *,
    limit_s: float,
    pause: Callable[[float], None],
    say: Callable[[Message], None],
) -> None:
    """Refuse as ``task.node`` says, from a process that may not be able to load torch. Not for node 0."""
    secret = Secret(task.secret) if task.secret else None
    arrival = Arrival(task, task.node, secret, Queue(), say)
    refuse(
        arrival.target,
        task.node,
        elsewhere=arrival.elsewhere,
        obstacle=arrival.obstacle,
        limit_s=limit_s,
        pause=pause,
        say=say,
        connect=Store.connect_without_torch,
    )
