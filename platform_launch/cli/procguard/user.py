"""``procguard user``: manages users in the database, also while a server runs."""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from platform_launch.cli import completion
from platform_launch.cli.flags import flags
from platform_launch.cli.output import read_text
from platform_launch.cli.procguard.extra import needs_procguard
from platform_launch.cli.procguard.server import settings_from
from platform_launch.cli.program import SETTINGS
from platform_launch.console.languages import translate
from platform_launch.errors import InputError, UsageError, shown
from platform_launch.text import Phrase, counted

if TYPE_CHECKING:
    from platform_launch.procguard.database.users import Users
    from platform_launch.procguard.server.settings import ServerSettings

_ROLES = click.Choice(["viewer", "operator", "admin"])

_in_place = flags(
    click.option(
        "--config", type=click.Path(path_type=Path), metavar="FILE", help="The server's configuration file."
    ),
    click.option(
        "--data", metavar="FOLDER", shell_complete=completion.folders, help="The server's data folder."
    ),
    click.option("--database", metavar="URL", help="The server's database."),
)
_PASSWORD = click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the password (default: prompt).",
)


@click.group("user", context_settings=SETTINGS)
def command() -> None:
    """Manage users: viewers may look, operators may make changes, admins may also manage users.

    A running server applies changes at once.
    """


@command.command("add")
@click.argument("name")
@click.option("--role", type=_ROLES, default="viewer", show_default=True)
@_PASSWORD
@_in_place
def add(name: str, role: str, password_file: Path | None, **place: Any) -> None:
    """Add a user."""
    with needs_procguard():
        from platform_launch.procguard.api.shapes.people import USER_PATTERN, UserRole

    if not re.fullmatch(USER_PATTERN, name):
        raise UsageError(
            Phrase(
                "{name} is not a user name: expected letters, digits, and _ . @ - in between",
                name=shown(name),
            )
        )
    with _users(place) as (users, _):
        kept = _hashed(password_file)
        users.add(name, UserRole(role), kept)
    _report(Phrase("user {name} added as {role}", name=name, role=role))


@command.command("passwd")
@click.argument("name")
@_PASSWORD
@_in_place
def passwd(name: str, password_file: Path | None, **place: Any) -> None:
    """Set a new password. The user's sessions end."""
    with _users(place) as (users, settings):
        if users.find(name) is None:
            raise UsageError(Phrase("no user {user}", user=shown(name)), "procguard user list")
        users.set_password(name, _hashed(password_file))
        _forget_initial(name, settings)
    _report(Phrase("password of {name} changed; the user's sessions have ended", name=name))


@command.command("role")
@click.argument("name")
@click.argument("role", type=_ROLES)
@_in_place
def role(name: str, role: str, **place: Any) -> None:
    """Set a new role. The user's sessions end."""
    from platform_launch.procguard.api.shapes.people import UserRole

    with _users(place) as (users, _):
        users.set_role(name, UserRole(role))
    _report(Phrase("role of {name} changed to {role}; the user's sessions have ended", name=name, role=role))


@command.command("remove")
@click.argument("name")
@_in_place
def remove(name: str, **place: Any) -> None:
    """Remove a user. The user's sessions end."""
    with _users(place) as (users, settings):
        users.remove(name)
        _forget_initial(name, settings)
    _report(Phrase("user {name} removed", name=name))


@command.command("list")
@_in_place
def list_(**place: Any) -> None:
    """List users."""
    with _users(place) as (users, _):
        for user in users.all():
            click.echo(f"{user.name:<24} {user.role.value:<9} since {user.created_at:%Y-%m-%d}")


@contextmanager
def _users(place: dict[str, Any]) -> Iterator[tuple[Users, ServerSettings]]:
    settings = settings_from(place.pop("config"), place)
    with needs_procguard():
        from platform_launch.procguard.api.refused import RequestRefused, Unavailable
        from platform_launch.procguard.database import accounts
        from platform_launch.procguard.database.engine import DatabaseError
    try:
        with accounts(settings.database_url, _who()) as users:
            yield users, settings
    except Unavailable as error:
        raise DatabaseError(*error.phrases) from error
    except RequestRefused as error:
        raise UsageError(*error.phrases) from error


def _who() -> str:
    """Return the name of this machine's user for the audit log."""
    try:
        return f"{pwd.getpwuid(os.getuid()).pw_name} (procguard user)"
    except KeyError:
        return f"uid {os.getuid()} (procguard user)"


def _hashed(password_file: Path | None) -> str:
    from platform_launch.procguard.api.shapes.people import LONGEST_PASSWORD, SHORTEST_PASSWORD
    from platform_launch.procguard.server.sessions import hash_password

    if password_file is not None:
        password = read_text(password_file).strip("\r\n")
    elif sys.stdin.isatty():
        password = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise UsageError("no terminal for a prompt: expected --password-file")
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise InputError(
            Phrase(
                "the password has {length}: expected {least} to {most}",
                length=counted(len(password), "character"),
                least=SHORTEST_PASSWORD,
                most=LONGEST_PASSWORD,
            )
        )
    return hash_password(password)


def _report(text: Phrase) -> None:
    click.echo(translate(text), err=True)


def _forget_initial(name: str, settings: ServerSettings) -> None:
    """Delete the file with the first password: it is no longer valid."""
    from platform_launch.procguard.server.assembly import FIRST_USER, initial_password

    if name == FIRST_USER:
        initial_password(settings).unlink(missing_ok=True)
