"""Routes for login, users, and one's own password, notices and tokens."""

from __future__ import annotations

import secrets
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from platform_launch.errors import LaunchError
from platform_launch.procguard.api.refused import RequestRefused, Unavailable
from platform_launch.procguard.api.shapes.people import (
    Login,
    MadeToken,
    Me,
    NewToken,
    NewUser,
    NoticeAddress,
    PasswordChange,
    Person,
    Session,
    TokenShape,
    UserChange,
    UserShape,
)
from platform_launch.procguard.database.users import ApiToken, User
from platform_launch.procguard.server.answers import refusals
from platform_launch.procguard.server.assembly import Parts, ServerParts
from platform_launch.procguard.server.gate import (
    CSRF_COOKIE,
    SESSION_COOKIE,
    Admin,
    Forbidden,
    Operator,
    Unauthorized,
    Viewer,
    address_of,
    begin_session,
    from_own_page,
)
from platform_launch.procguard.server.notices import receiver_at
from platform_launch.procguard.server.sessions import CHECKS, TOKEN_SESSION, hash_password, is_password
from platform_launch.procguard.server.throttle import TooMany
from platform_launch.sentences import sentence

router = APIRouter(prefix="/api/v1", tags=["people"])
_CHANGE = refusals(400, 401, 403, 404, 409, 413, 422, 429, 503)


@router.post("/login", operation_id="login", responses=refusals(400, 401, 403, 413, 422, 429, 503))
async def login(who: Login, request: Request, response: Response, parts: Parts) -> Session:
    """Log in. Returns a token for scripts, and sets it as a cookie for browsers."""
    from_own_page(request)
    address = address_of(request)
    try:
        parts.throttle.count(address, who.name)
    except TooMany:
        parts.meter.logins.labels("throttled").inc()
        raise
    account = await to_thread.run_sync(_account, parts, who, limiter=CHECKS)
    parts.meter.logins.labels("failed" if account is None else "succeeded").inc()
    if account is None:
        raise Unauthorized("wrong-password")
    with suppress(Unavailable):  # logging in must work even if nothing can be recorded
        detail = sentence("from-address", address=address or sentence("unknown-address"))
        await to_thread.run_sync(parts.control.record, account.name, "login", account.name, detail)
    parts.throttle.succeeded(address, account.name)
    token, expires_at = begin_session(parts.sessions, account, request, response)
    return Session(token=token, name=account.name, role=account.role, expires_at=expires_at)


def _account(parts: ServerParts, who: Login) -> User | None:
    account = parts.accounts.find(who.name)
    kept = account.password_hash if account else None
    return account if is_password(kept, who.password) else None


@router.post("/logout", operation_id="logout", status_code=204, responses=refusals(401, 403, 503))
def logout(parts: Parts, person: Viewer, response: Response) -> None:
    """End this session: its token becomes invalid. API tokens are revoked at `/me/tokens`."""
    _in_person(person)
    parts.sessions.end(person)
    for name in (SESSION_COOKIE, CSRF_COOKIE):
        response.delete_cookie(name)


@router.get("/me", operation_id="me", responses=refusals(401, 503))
def me(person: Viewer) -> Me:
    """Return the user who is logged in."""
    return Me(name=person.name, role=person.role)


@router.get("/users", operation_id="users", responses=refusals(401, 403, 503))
def users(parts: Parts, _person: Admin) -> list[UserShape]:
    """List users."""
    return [
        UserShape(name=one.name, role=one.role, created_at=one.created_at, external=bool(one.subject))
        for one in parts.accounts.all()
    ]


@router.post("/users", operation_id="add_user", status_code=201, responses=_CHANGE)
async def add_user(new: NewUser, parts: Parts, person: Admin) -> UserShape:
    """Add a user."""
    kept = await to_thread.run_sync(hash_password, new.password, limiter=CHECKS)
    await to_thread.run_sync(parts.accounts.by(person.name).add, new.name, new.role, kept)
    return UserShape(name=new.name, role=new.role, created_at=datetime.now(timezone.utc))


@router.put("/users/{name}", operation_id="change_user", status_code=204, responses=_CHANGE)
async def change_user(name: str, wanted: UserChange, parts: Parts, person: Admin) -> None:
    """Set a user's role or password, which ends the user's sessions. Nobody changes their own role."""
    accounts = parts.accounts.by(person.name)
    await to_thread.run_sync(_not_external, parts, name)
    if wanted.role is not None:
        _not_oneself(person, name)
        await to_thread.run_sync(accounts.set_role, name, wanted.role)
    if wanted.password is not None:
        kept = await to_thread.run_sync(hash_password, wanted.password, limiter=CHECKS)
        await to_thread.run_sync(accounts.set_password, name, kept)


@router.delete("/users/{name}", operation_id="remove_user", status_code=204, responses=_CHANGE)
def remove_user(name: str, parts: Parts, person: Admin) -> None:
    """Remove a user, which ends the user's sessions and tokens."""
    _not_oneself(person, name)
    parts.accounts.by(person.name).remove(name)


@router.put("/me/password", operation_id="change_own_password", status_code=204, responses=_CHANGE)
async def change_own_password(
    wanted: PasswordChange, request: Request, response: Response, parts: Parts, person: Viewer
) -> None:
    """Change one's own password. All other sessions end."""
    _in_person(person)
    parts.throttle.count(address_of(request), person.name)
    await to_thread.run_sync(_change_own, parts, person, wanted, limiter=CHECKS)
    account = await to_thread.run_sync(parts.accounts.find, person.name)
    if account is not None:
        begin_session(parts.sessions, account, request, response)


def _change_own(parts: ServerParts, person: Person, wanted: PasswordChange) -> None:
    account = parts.accounts.find(person.name)
    if account is None or not is_password(account.password_hash, wanted.current):
        raise Forbidden("password-differs")
    parts.accounts.by(person.name).set_password(person.name, hash_password(wanted.new))


@router.put("/me/notices", operation_id="set_notices", status_code=204, responses=_CHANGE)
def set_notices(wanted: NoticeAddress, parts: Parts, person: Operator) -> None:
    """Set where notices about one's own groups go. Not for viewers, who could make the server connect
    anywhere.
    """
    _in_person(person)
    if wanted.address:
        schemes = parts.settings.notice_schemes
        if urlsplit(wanted.address).scheme not in schemes:
            raise RequestRefused("notice-scheme", schemes=list(schemes))
        try:
            receiver_at(wanted.address)
        except LaunchError as error:
            raise RequestRefused("notice-address") from error
    parts.accounts.by(person.name).set_address(person.name, wanted.address)


@router.get("/me/tokens", operation_id="tokens", responses=refusals(401, 403, 503))
def tokens(parts: Parts, person: Viewer) -> list[TokenShape]:
    """List one's own valid tokens."""
    return [
        TokenShape.model_validate(token, from_attributes=True) for token in parts.accounts.tokens(person.name)
    ]


@router.post("/me/tokens", operation_id="add_token", status_code=201, responses=_CHANGE)
def add_token(new: NewToken, parts: Parts, person: Viewer) -> MadeToken:
    """Create a token for a script, returned only now. It never allows more than its user may do."""
    _in_person(person)
    now = datetime.now(timezone.utc)
    token = ApiToken(
        secrets.token_hex(12), person.name, new.label, new.role, now, now + timedelta(days=new.days)
    )
    parts.accounts.by(person.name).add_token(token)
    shape = TokenShape.model_validate(token, from_attributes=True)
    return MadeToken(**shape.model_dump(), token=parts.sessions.token(token.id))


@router.delete("/me/tokens/{token}", operation_id="end_token", status_code=204, responses=_CHANGE)
def end_token(token: str, parts: Parts, person: Viewer) -> None:
    """Revoke one of one's own tokens."""
    parts.accounts.by(person.name).end_token(person.name, token)


def _in_person(person: Person) -> None:
    """Raise Forbidden for a script: whoever finds its token must not gain more, or longer, access."""
    if person.session.startswith(TOKEN_SESSION):
        raise Forbidden("no-tokens")


def _not_external(parts: ServerParts, name: str) -> None:
    account = parts.accounts.find(name)
    if account is not None and account.subject:
        raise RequestRefused("external-user", user=name)


def _not_oneself(person: Person, name: str) -> None:
    if person.name == name:
        raise RequestRefused("oneself")
