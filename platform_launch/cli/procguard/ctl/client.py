"""Talking to the server's API: what it refuses becomes an error with its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click

from platform_launch.cli import completion
from platform_launch.cli.flags import json_or_table
from platform_launch.cli.procguard.ctl.tokens import server
from platform_launch.cli.procguard.extra import needs_procguard
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, UsageError
from platform_launch.text import escaped

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 30.0
_LISTED = 1_000  # in one answer
_TAB_S = 3.0  # somebody waits at a key

SERVER_OPTION = click.option("--server", "url", metavar="URL", help="Where the server is (PROCGUARD_SERVER).")


# What the page offers by a click, by the code of the problem.
_COMMANDS = {
    "no-group": "groups lists them",
    "no-worker": "workers lists them",
    "no-node": "workers lists them: a worker's name begins with its node's",
    "no-run": "runs {group} lists them",
    "no-workers": "move WORKER… --group {group}",
    "no-master": "set {group} --master-addr NODE, the one that rank 0 runs on",
    "group-active": "stop {group}",
    "group-at-rest": "runs {group} says how the last run ended",
}


class ServerUnreachableError(LaunchError):
    """The server does not answer, or cannot do its work now. Try again."""

    exit_code = 75


class ApiClient:
    """Calls of one server; a block that ends with its connections."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.url = url
        with needs_procguard():
            import httpx
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # httpx loads the certificates, in 70 ms, for http too.
            verify = urlsplit(url).scheme != "http"
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, verify=verify)
        except (httpx.InvalidURL, ValueError, OSError) as error:
            raise UsageError(f"server {url!r}: {escaped(str(error))}") from error

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int | None) -> Any:
        """Return what the API answers."""
        return self._json(
            "GET", path, params={key: value for key, value in query.items() if value is not None}
        )

    def all(self, path: str, key: str) -> list[dict[str, Any]]:
        """Return all of a list that the API gives a page at a time; ``key`` names one of it."""
        found: list[dict[str, Any]] = []
        while len(found) % _LISTED == 0:
            page = self.get(path, limit=_LISTED, after=found[-1][key] if found else "")
            found += page
            if not page:
                break
        return found

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Ask for a change."""
        return self._json(method, path, json=body)

    def _json(self, method: str, path: str, **more: Any) -> Any:
        import httpx

        try:
            response = self._http.request(method, f"/api/v1{path}", **more)
        except httpx.HTTPError as error:
            reason = escaped(str(error)) or type(error).__name__
            hint = "is it running, and is this its address? --server or PROCGUARD_SERVER names another"
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                hint = "SSL_CERT_FILE names the file with a certificate of your own"
            raise ServerUnreachableError(f"the server {self.url} does not answer: {reason}", hint) from error
        return self._read(response)

    def _read(self, response: httpx.Response) -> Any:
        try:
            answer = response.json() if response.content else None
        except ValueError:
            answer = None
        if response.is_success and (answer is not None or not response.content):
            return answer
        refusal = answer if isinstance(answer, dict) else {}
        problems = refusal.get("problems", ())
        if flags := "; ".join(filter(None, map(_of_flag, problems))):
            raise UsageError(
                escaped(flags), f"{click.get_current_context().command_path} --help lists the flags"
            )
        text = escaped(str(refusal.get("error") or f"{self.url} answered {response.status_code}"))
        hints = [hint for one in problems if (hint := hint_here(one))]
        hint = escaped("; ".join(hints) or hint_here(refusal))
        if response.status_code == 401 and not response.request.url.path.endswith("/login"):
            hint = f"procguard ctl login --server {self.url}"
        if response.status_code >= 500:
            raise ServerUnreachableError(text, hint or "try again")
        raise UsageError(text, hint or ("" if refusal else "is this a ProcGuard server's address?"))


def hint_here(problem: dict[str, Any]) -> str:
    """Return what to do about a refusal or a problem: where this has a command for it, that command."""
    name = click.get_current_context().params.get("name")
    known = _COMMANDS.get(str(problem.get("code")), "")
    return f"procguard ctl {known.format(group=name or 'GROUP')}" if known else str(problem.get("hint") or "")


def _of_flag(problem: dict[str, Any]) -> str:
    """Say what is wrong with a field of the API by the flag that set it, empty where none did."""
    field = str(problem["values"].get("field", "")).removeprefix("settings.").partition(".")[0]
    flags = (one.opts[0] for one in click.get_current_context().command.params if one.name == field)
    what = str(problem["text"]).partition(": ")[2]
    return next((f"{flag}: {what}" for flag in flags), "")


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its client, from --server and the variables, and whether --format asks for JSON."""

    @click.pass_context
    def command(context: click.Context, /, url: str | None, form: str, **values: Any) -> Any:
        with ApiClient(*server(Environment.of_this_process(), url)) as client:
            return context.invoke(function, client, as_json=form == "json", **values)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return SERVER_OPTION(json_or_table(command))


def segment(name: str) -> str:
    """Return a name as a part of an address."""
    return quote(name, safe="")


def offered(path: str, key: str) -> Callable[..., Any]:
    """Return what offers the names that the server knows to a shell's Tab."""

    def known(context: click.Context) -> list[str]:
        url = context.params.get("url")
        with ApiClient(*server(Environment.of_this_process(), url), timeout_s=_TAB_S) as client:
            return [one[key] for one in (client.get(path) if path == "/groups" else client.all(path, key))]

    return completion.names(known)


GROUPS = offered("/groups", "name")
WORKERS = offered("/workers", "worker")
NODES = offered("/nodes", "node")
