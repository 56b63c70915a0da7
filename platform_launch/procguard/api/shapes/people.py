"""Users, sessions and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated

from pydantic import Field, StringConstraints

from platform_launch.procguard.api.shapes import Shape

USER_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9_.@-]{0,62}[A-Za-z0-9])?$"
PROXY_SESSION = "proxy "
"""Prefix of the sessions of users named by a trusted proxy in every request."""
SHORTEST_PASSWORD, LONGEST_PASSWORD = 8, 1_024

UserName = Annotated[str, StringConstraints(pattern=USER_PATTERN)]
NewPassword = Annotated[str, StringConstraints(min_length=SHORTEST_PASSWORD, max_length=LONGEST_PASSWORD)]


class Login(Shape):
    """Name and password of somebody logging in."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    password: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PASSWORD)]


class UserRole(str, Enum):
    """Viewers may look, operators may make changes, admins may also manage users."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True)
class Person:
    """The user and session of a request. A change requested by a page must come with ``csrf``."""

    name: str
    role: UserRole
    session: str
    csrf: str
    external: bool = False
    """Whether an identity provider vouches for this user, who has no password here."""

    @property
    def operator(self) -> bool:
        """Whether the user may make changes; others see no controls that would be refused."""
        return self.role in (UserRole.OPERATOR, UserRole.ADMIN)

    @property
    def can_log_out(self) -> bool:
        """Whether there is a session to end; a proxy manages its own."""
        return not self.session.startswith(PROXY_SESSION)

    @property
    def admin(self) -> bool:
        """Whether the user may manage users."""
        return self.role is UserRole.ADMIN


class Session(Shape):
    """The answer to a login: ``token`` goes into the Authorization header of later requests (``Bearer``)."""

    token: str
    name: str
    role: UserRole
    expires_at: datetime


class Me(Shape):
    """The user who is logged in."""

    name: str
    role: UserRole


class NewUser(Shape):
    """A user to add."""

    name: UserName
    role: UserRole
    password: NewPassword


class UserChange(Shape):
    """A new role or password, which ends the user's sessions. None: unchanged."""

    role: UserRole | None = None
    password: NewPassword | None = None


class UserShape(Shape):
    """A user."""

    name: str
    role: UserRole
    created_at: datetime
    external: bool = False
    """Whether an identity provider vouches for this user and sets the role."""


class PasswordChange(Shape):
    """A change of one's own password."""

    current: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PASSWORD)]
    new: NewPassword


class NoticeAddress(Shape):
    """Where one's own notices go: an Apprise address, or empty for nowhere."""

    address: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=1_000, pattern=r"^([a-z0-9]+://[!-~]+)?$")
    ]


class NewToken(Shape):
    """A new token for a script: its role, which never exceeds the user's, and its lifetime in days."""

    label: Annotated[str, StringConstraints(min_length=1, max_length=64, strip_whitespace=True)]
    role: UserRole = UserRole.VIEWER
    days: Annotated[int, Field(ge=1, le=366)] = 30


class TokenShape(Shape):
    """One of the user's own tokens. The token itself is shown once, when it is created."""

    id: str
    label: str
    role: UserRole
    created_at: datetime
    ends_at: datetime


class MadeToken(TokenShape):
    """A new token: ``token`` goes into the Authorization header (``Bearer``), and is shown only now."""

    token: str
