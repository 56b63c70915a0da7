"""A node that cannot start, or was told to end between two starts, says so, and nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Queue

from platform_launch.rendezvous.authentication import Seal, Secret
from platform_launch.rendezvous.connecting import (
    CONNECT_LIMIT_S,
    Connector,
    CoordinatorRefusedError,
    JoinTarget,
    NeverReachedError,
)
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.handshake import RejectedError
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.participant import Participant
from platform_launch.rendezvous.port_discovery import announce_refusal
from platform_launch.rendezvous.run.arriving import Arrival
from platform_launch.rendezvous.run.gathering import refusal_of
from platform_launch.rendezvous.run.launcher import RunTask
from platform_launch.rendezvous.run.state import PURPOSE, RunPhase, RunState
from platform_launch.rendezvous.store import Store, StoreError

_LIMIT_S = 10.0
_PAUSE_S = 0.1
_LAST_ANSWER_S = 0.5
_LONGEST_REASON = 1000


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
    with suppress(NeverReachedError, CoordinatorRefusedError, RejectedError, StoreError):
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
    """Refuse as ``task.node`` says, from a process that may not be able to load torch.

    Node 0 cannot be come to then, and says so on MASTER_PORT until as many have asked as it expects. Raises
    OSError where that is taken.
    """
    secret = Secret(task.secret) if task.secret else None
    if task.leads:
        refusal = refusal_of(task.node)
        refusal = replace(refusal, reason=refusal.reason[:_LONGEST_REASON])
        callers: list[None] = []
        deadline = time.monotonic() + limit_s
        seal = Seal(secret, PURPOSE.name, "")
        with announce_refusal(task.master_port, refusal, seal, lambda: callers.append(None)):
            while len(callers) < task.node.nnodes - 1 + task.spares and time.monotonic() < deadline:
                pause(_PAUSE_S)
            pause(_LAST_ANSWER_S)
        return
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
