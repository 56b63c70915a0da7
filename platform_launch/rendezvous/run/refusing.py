"""A node that was told to end between two starts says so, and nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from platform_launch.rendezvous.connecting import CONNECT_LIMIT_S, Connector, JoinTarget, NeverReachedError
from platform_launch.rendezvous.ending import NodeEnding
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.participant import Participant, RejectedError
from platform_launch.rendezvous.run.state import RunPhase, RunState
from platform_launch.rendezvous.store import StoreError

_LIMIT_S = 10.0
_PAUSE_S = 0.1


def refuse(
    target: JoinTarget,
    ending: NodeEnding,
    *,
    elsewhere: Sequence[JoinTarget] = (),
    obstacle: Callable[[JoinTarget, Participant], str] = lambda _target, _found: "",
) -> None:
    """Come as a node that cannot start, and leave once node 0 has heard it; give up after a while.

    ``elsewhere`` and ``obstacle`` are those of a ``Connector``: the nodes may gather at another place by now.
    """
    me = replace(target.me, refusal=f"told to end ({ending.stopped_by})", refusal_code=ending.exit_code)
    connector = Connector(
        replace(target, me=me),
        timeout_s=_LIMIT_S,
        answer_limit_s=CONNECT_LIMIT_S,
        pause=time.sleep,
        say=_say_nothing,
        elsewhere=[replace(other, me=me) for other in elsewhere],
        obstacle=obstacle,
    )
    deadline = time.monotonic() + _LIMIT_S
    with suppress(NeverReachedError, RejectedError, StoreError):
        participant = connector.join()
        while time.monotonic() < deadline:
            participant.heartbeat()
            state = participant.state(RunState)
            if state is not None and state.phase is not RunPhase.WAITING:
                break
            time.sleep(_PAUSE_S)
        participant.leave()


def _say_nothing(_line: ConsoleLine) -> None:
    """Nobody waits here for node 0."""
