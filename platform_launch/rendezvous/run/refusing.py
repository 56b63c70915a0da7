"""A node that cannot start, or was asked to end between two starts, says so, and nobody waits for it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from platform_launch.rendezvous.connecting import Connector, NeverReachedError, RejectedError
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.loop import ConnectionLostError
from platform_launch.rendezvous.participant import CoordinatorGoneError
from platform_launch.rendezvous.run.arriving import Arrival
from platform_launch.rendezvous.run.state import RunPhase, RunState

_LIMIT_S = 10.0
_PAUSE_S = 0.1


def refuse(arrival: Arrival, me: Fingerprint) -> None:
    """Come as ``me``, who cannot start, and leave once node 0 has heard it; give up after a while."""
    connector = Connector(
        replace(arrival.target, me=me),
        timeout_s=_LIMIT_S,
        pause=time.sleep,
        say=lambda _line: None,
        elsewhere=[replace(other, me=me) for other in arrival.elsewhere],
        obstacle=arrival.obstacle,
    )
    deadline = time.monotonic() + _LIMIT_S
    with suppress(NeverReachedError, RejectedError, ConnectionLostError, CoordinatorGoneError):
        participant = connector.join()
        while time.monotonic() < deadline:
            participant.step()
            state = participant.state(RunState)
            if state is not None and state.phase is not RunPhase.WAITING:
                break
            time.sleep(_PAUSE_S)
        participant.leave()
