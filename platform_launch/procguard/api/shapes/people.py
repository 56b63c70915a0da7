"""Who logs in, and with what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated

from pydantic import Field, StringConstraints

from platform_launch.procguard.api.shapes import Shape

USER_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9_.@-]{0,62}[A-Za-z0-9])?$"
PROXY_SESSION = "proxy "
"""How the session of somebody begins whom a trusted proxy names with every request."""
SHORTEST_PASSWORD, LONGEST_PASSWORD = 8, 1_024

UserName = Annotated[str, StringConstraints(pattern=USER_PATTERN)]
NewPassword = Annotated[str, StringConstraints(min_length=SHORTEST_PASSWORD, max_length=LONGEST_PASSWORD)]


class Login(Shape):
    """Name and password of somebody who logs in."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    password: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PASSWORD)]


class UserRole(str, Enum):
    """What a person may do: look, change as well, or also say who else logs in."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True)
class Person:
    """Who sent a request, and in which session. A change that a page asks for must come with ``csrf``."""

    name: str
    role: UserRole
    session: str
    csrf: str
    external: bool = False
    """Whether an identity provider vouches for this person: there is no password here."""

    @property
    def operator(self) -> bool:
        """Whether the role may change things; others see no controls that would be refused."""
        return self.role in (UserRole.OPERATOR, UserRole.ADMIN)

    @property
    def can_log_out(self) -> bool:
        """Whether there is a session to end here: a proxy's are its own."""
        return not self.session.startswith(PROXY_SESSION)

    @property
    def admin(self) -> bool:
        """Whether the role may say who else logs in."""
        return self.role is UserRole.ADMIN


class Session(Shape):
    """The answer to a login: ``token`` goes into the Authorization header of what follows (``Bearer``)."""

    token: str
    name: str
    role: UserRole
    expires_at: datetime


class Me(Shape):
    """Who is logged in."""

    name: str
    role: UserRole


class NewUser(Shape):
    """Somebody who is to log in."""

    name: UserName
    role: UserRole
    password: NewPassword


class UserChange(Shape):
    """Another role or password for a user, which ends the user's sessions. None: as before."""

    role: UserRole | None = None
    password: NewPassword | None = None


class UserShape(Shape):
    """Somebody who may log in."""

    name: str
    role: UserRole
    created_at: datetime
    external: bool = False
    """Whether an identity provider vouches for this user and sets the role."""


class PasswordChange(Shape):
    """One's own password."""

    current: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PASSWORD)]
    new: NewPassword


class NoticeAddress(Shape):
    """Where one's own notices go: an address of Apprise, or empty for nowhere."""

    address: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=1_000, pattern=r"^([a-z0-9]+://[!-~]+)?$")
    ]


class NewToken(Shape):
    """A token for a script: what it may do, if its user still may, and for how many days."""

    label: Annotated[str, StringConstraints(min_length=1, max_length=64, strip_whitespace=True)]
    role: UserRole = UserRole.VIEWER
    days: Annotated[int, Field(ge=1, le=366)] = 30


class TokenShape(Shape):
    """A token of one's own. The token itself is told once, when it is made."""

    id: str
    label: str
    role: UserRole
    created_at: datetime
    ends_at: datetime


class MadeToken(TokenShape):
    """A new token: ``token`` goes into the Authorization header (``Bearer``), and is told only now."""

    token: str
