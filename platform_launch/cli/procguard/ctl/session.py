"""``procguard ctl login`` and ``logout``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from platform_launch.cli.output import read_text
from platform_launch.cli.procguard.ctl.client import (
    SERVER_OPTION,
    ApiClient,
    SavedTokens,
    is_encrypted_or_local,
    server,
)
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.text import Phrase


@click.command()
@SERVER_OPTION
@click.option("--name", metavar="NAME", help="Your user name.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the password (default: prompt).",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with an API token from your account's page, instead of name and password.",
)
def login(url: str | None, name: str | None, password_file: Path | None, token_file: Path | None) -> None:
    """Log in, and save the token for later commands. With single sign-on, use --token-file."""
    env = Environment.of_this_process()
    url, _ = server(env, url)
    if token_file is not None:
        token = read_text(token_file).strip()
        with ApiClient(url, token) as client:
            _save(env, url, client.get("/me"), token)
        return
    if (name is None or password_file is None) and not sys.stdin.isatty():
        raise UsageError("no terminal for a prompt: expected --name and --password-file")
    if not is_encrypted_or_local(url):
        warning = Phrase(
            "warning: {url} is not encrypted: others may read the password and your session", url=url
        )
        click.echo(translate(warning), err=True)
    name = name or click.prompt("name", err=True)
    password = (
        read_text(password_file).strip("\r\n")
        if password_file is not None
        else click.prompt("password", hide_input=True, err=True)
    )
    with ApiClient(url) as client:
        session = client.send("POST", "/login", {"name": name, "password": password})
    _save(env, url, session, session["token"])


def _save(env: Environment, url: str, person: dict[str, str], token: str) -> None:
    SavedTokens(env).save(url, token)
    done = Phrase("logged in to {url} as {name} ({role})", url=url, name=person["name"], role=person["role"])
    click.echo(translate(done), err=True)


@click.command()
@SERVER_OPTION
def logout(url: str | None) -> None:
    """Log out, and delete the saved token."""
    env = Environment.of_this_process()
    url, shown = server(env, url)
    saved = SavedTokens(env).read().get(url)  # PROCGUARD_TOKEN takes precedence, and may belong to a script
    with ApiClient(url, saved or shown) as client:
        try:
            client.send("POST", "/logout")
        except UsageError:
            if shown and not saved:
                raise
            click.echo(translate("saved token deleted; there was no session to end"), err=True)
    SavedTokens(env).save(url, None)
