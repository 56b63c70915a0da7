"""What the routes work with, made once at start."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from platform_launch.procguard.core.control import Control
from platform_launch.procguard.database.users import Users
from platform_launch.procguard.server.gate import Unauthorized
from platform_launch.procguard.server.history import History
from platform_launch.procguard.server.inspections import Inspections
from platform_launch.procguard.server.logs.store import Logs
from platform_launch.procguard.server.metrics import Metrics
from platform_launch.procguard.server.periodic import PeriodicThread
from platform_launch.procguard.server.sessions import Sessions
from platform_launch.procguard.server.settings import ServerSettings
from platform_launch.procguard.server.sign_in import ProxySignIn
from platform_launch.procguard.server.throttle import Throttle


@dataclass(frozen=True)
class ServerParts:
    """The parts of a server. ``join_token`` is what agents show once, to get a credential of their own."""

    control: Control
    logs: Logs
    accounts: Users
    sessions: Sessions
    proxy: ProxySignIn
    throttle: Throttle
    meter: Metrics
    history: History
    control_loop: PeriodicThread
    join_token: str
    settings: ServerSettings
    inspections: Inspections = field(default_factory=Inspections)

    def is_join_token(self, token: str | None) -> bool:
        """Tell whether agents join with this."""
        return hmac.compare_digest((token or "").encode(), self.join_token.encode())


async def _parts(request: Request) -> ServerParts:
    return cast(ServerParts, request.app.state.parts)


Parts = Annotated[ServerParts, Depends(_parts)]
"""The parts of the server that answers."""


def known(node: str | None) -> str:
    """Return the node that a credential is of. Raises Unauthorized where it is nobody's."""
    if node is None:
        raise Unauthorized("the agent's credential is not known here", "join again with the join token")
    return node
