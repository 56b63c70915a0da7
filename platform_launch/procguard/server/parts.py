"""What the routes work with, made once at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from platform_launch.procguard.control import Control
from platform_launch.procguard.database.users import Users
from platform_launch.procguard.server.clerk import Clerk
from platform_launch.procguard.server.gate import Gate, Unauthorized
from platform_launch.procguard.server.logs import Logs
from platform_launch.procguard.server.meter import Meter
from platform_launch.procguard.server.throttle import Throttle


@dataclass(frozen=True)
class Parts:
    """The parts of a server. ``join_token`` is what agents show once, to get a credential of their own."""

    control: Control
    logs: Logs
    accounts: Users
    gate: Gate
    throttle: Throttle
    meter: Meter
    clerk: Clerk
    join_token: str


async def _parts(request: Request) -> Parts:
    return cast(Parts, request.app.state.parts)


Here = Annotated[Parts, Depends(_parts)]
"""The parts of the server that answers."""


def node_of(credential: str | None, parts: Parts) -> str:
    """Return the node whose agent has this credential. Raises Unauthorized."""
    node = parts.control.who(credential) if credential else None
    if node is None:
        raise Unauthorized("the agent's credential is not known here", "join again with the join token")
    return node
