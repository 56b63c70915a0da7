"""``procguard server``: the server with its web page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from platform_launch.cli import completion
from platform_launch.cli.procguard.extra import needs_procguard
from platform_launch.console import Console
from platform_launch.environment import Environment, hide_from_neighbours
from platform_launch.errors import UsageError
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from platform_launch.procguard.server.settings import ServerSettings


@click.command("server")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings, in YAML.")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen (default: 127.0.0.1:8765).")
@click.option(
    "--data",
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Folder for logs and the database (default: procguard-data).",
)
@click.option("--database", metavar="URL", help="SQLite or PostgreSQL (default: SQLite in the data folder).")
def command(config: Path | None, **flags: Any) -> int:
    """Run the server with its web page. Flags override the configuration file.

    The first start creates what is missing in the data folder: the database, a user `admin` with a random
    password and, on a loopback address, a join token for agents.
    """
    env = Environment.of_this_process()
    settings = settings_from(config, flags)
    with needs_procguard():
        from platform_launch.procguard.server.assembly import assembled, make_first_user
        from platform_launch.procguard.server.run import prepare_process, serve
        from platform_launch.procguard.server.settings import join_token
    prepare_process()
    token, token_file = join_token(settings, env)
    hide_from_neighbours("PROCGUARD_JOIN_TOKEN")
    with assembled(settings, token) as parts:
        password = make_first_user(parts.accounts, settings)
        if password is not None:
            _report_admin(password, config, flags)
        serve(parts, settings, lambda port: _report_address(port, settings, env, token_file))
    Console().info("the server has stopped; runs continue, and agents wait for it")
    return 0


def settings_from(config: Path | None, flags: dict[str, Any]) -> ServerSettings:
    """Return the settings of a file, overridden by flags. Raises InputError, UsageError."""
    with needs_procguard():
        from pydantic import ValidationError

        from platform_launch.procguard.server.settings import ServerSettings, read_settings
    settings = read_settings(config)
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return ServerSettings.model_validate(settings.model_dump() | given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        problem = first["msg"].removeprefix("Value error, ")
        raise UsageError(
            Phrase("--{name} {value}: {problem}", name=name, value=repr(given.get(name)), problem=problem)
        ) from error


def _report_admin(password: Path, config: Path | None, flags: dict[str, Any]) -> None:
    """Print how to log in, and the flags with which `procguard user` finds the same database."""
    given = {"config": str(config) if config else None, "data": flags["data"]}
    same = "".join(f" --{name} {shlex.quote(value)}" for name, value in given.items() if value)
    if flags["database"]:
        same += " --database URL"  # a URL may contain a password
    console = Console()
    console.info(Phrase("log in as admin with the password in {file}", file=password.resolve()))
    console.info(
        Phrase(
            "to change it: procguard user passwd admin{same}; to add users: procguard user add NAME{same}",
            same=same,
        )
    )


def _report_address(port: int, settings: ServerSettings, env: Environment, token_file: Path | None) -> None:
    console = Console()
    scheme = "http" if settings.tls_certificate is None else "https"
    host = env.hostname if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104 - compared
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    console.title(f"ProcGuard  {url}")
    if scheme == "http" and not settings.loopback:
        console.warn("passwords and tokens are sent unencrypted: set tls_certificate and tls_key")
    where = "PROCGUARD_JOIN_TOKEN" if token_file is None else str(token_file.resolve())
    flag = "" if token_file is None else f" --token-file {shlex.quote(where)}"
    console.info(Phrase("on each node, with the join token in {where}:", where=where))
    console.info(Phrase("procguard agent --server {url} --node NAME --workers 1{flag}", url=url, flag=flag))
