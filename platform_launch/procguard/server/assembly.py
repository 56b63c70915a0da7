"""The parts of a server, made from its settings and used by the routes."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request
from limits import RateLimitItemPerMinute

from platform_launch.procguard.api.refused import NotFound, Unavailable
from platform_launch.procguard.api.shapes.history import AuditEvent
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.control import history
from platform_launch.procguard.control.control import Control
from platform_launch.procguard.control.history import History, IdleWatch
from platform_launch.procguard.database import serving
from platform_launch.procguard.database.engine import DatabaseError
from platform_launch.procguard.database.users import Users
from platform_launch.procguard.server.gate import Unauthorized
from platform_launch.procguard.server.inspections import Inspections
from platform_launch.procguard.server.logs.store import ROOM_EVERY_S, Logs, keep_within
from platform_launch.procguard.server.metrics import Metrics
from platform_launch.procguard.server.notices import Notices
from platform_launch.procguard.server.periodic import PeriodicThread
from platform_launch.procguard.server.sessions import Sessions, hash_password
from platform_launch.procguard.server.settings import ServerSettings, check_ours, check_private, read_or_make
from platform_launch.procguard.server.sign_in import ProxySignIn
from platform_launch.procguard.server.throttle import Throttle


@dataclass(frozen=True)
class ServerParts:
    """The parts of a server. Agents show ``join_token`` once, to get their own credential."""

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
        """Return whether this is the join token."""
        return hmac.compare_digest((token or "").encode(), self.join_token.encode())


async def _parts(request: Request) -> ServerParts:
    return cast(ServerParts, request.app.state.parts)


Parts = Annotated[ServerParts, Depends(_parts)]
"""The parts of the answering server."""


def known(node: str | None) -> str:
    """Return the node of a credential. Raises Unauthorized if there is none."""
    if node is None:
        raise Unauthorized("unknown-credential")
    return node


FIRST_USER = "admin"
_MIB, _GIB = 2**20, 2**30
_TICK_S = 0.5


def initial_password(settings: ServerSettings) -> Path:
    """Return the file with the first user's password, until it is changed."""
    return settings.data / "initial-password"


def make_first_user(users: Users, settings: ServerSettings) -> Path | None:
    """Create an admin if there are no users, and return the file with the password.

    Raises DatabaseError if the database cannot be used.
    """
    path = initial_password(settings)
    try:
        if users.all():
            return None
        users.add(FIRST_USER, UserRole.ADMIN, hash_password(read_or_make(path)))
    except Unavailable as error:
        raise DatabaseError(*error.phrases) from error
    return path


@contextmanager
def assembled(settings: ServerSettings, token: str) -> Iterator[ServerParts]:
    """Open the database as its only server, and run the control loop until the end.

    Raises LaunchError if another server has the database or it cannot be opened.
    """
    settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_ours(settings.data)
    if settings.tls_key is not None and settings.tls_key.exists():  # else see the certificate
        check_private(settings.tls_key)
    with serving(settings.database_url) as database:
        secret = read_or_make(settings.data / "session-secret")
        logs = Logs(settings.data / "logs", settings.log_limit_mib * _MIB)
        try:
            control = Control(
                database.store,
                log_size=logs.size,
                heartbeat_s=settings.heartbeat_s,
                nodes_limit=settings.nodes_limit,
            )
        except Unavailable as error:
            raise DatabaseError(*error.phrases) from error
        ended = settings.data / "ended-sessions"
        parts = ServerParts(
            control=control,
            logs=logs,
            accounts=database.users,
            sessions=Sessions(secret, database.users, ended, settings.session_hours),
            proxy=ProxySignIn(settings.sign_in, database.users),
            throttle=Throttle(new_nodes=RateLimitItemPerMinute(settings.new_nodes_per_minute)),
            meter=Metrics(control.queries),
            history=History(control.queries, database.measurements),
            control_loop=PeriodicThread("control-loop", _TICK_S, control.tick, "groups are not advanced"),
            join_token=token,
            settings=settings,
        )

        def recipient(group: str) -> str:
            with suppress(NotFound):
                shape = control.queries.group(group)
                person = shape.requested_by or next(iter(shape.settings.owners), "")
                account = database.users.find(person) if shape.settings.notify and person else None
                return account.address if account else ""
            return ""

        notices = Notices(settings.notices, recipient, settings.page_url, parts.meter.notices)
        idle = IdleWatch(control)

        def sample() -> None:
            try:
                parts.history.sample()
            finally:
                idle.check(parts.history.gpu_use())

        limit_bytes = int(settings.logs_limit_gib * _GIB)

        def drop_old_logs() -> str:
            return keep_within(limit_bytes, logs, control.queries.worker_names())

        def on_event(event: AuditEvent) -> None:
            notices.receive(event)
            if event.action == "failed":
                parts.meter.failed.inc()

        database.store.on_event = on_event
        with ExitStack() as stack:
            for thread in (
                parts.control_loop,
                PeriodicThread("logs", ROOM_EVERY_S, drop_old_logs, "logs exceed their limit"),
                PeriodicThread("history", history.EVERY_S, sample, "charts are incomplete"),
                notices,
            ):
                thread.start()
                stack.callback(thread.stop)
            yield parts
