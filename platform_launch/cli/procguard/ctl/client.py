"""A client of the server's API. Its rejections become errors."""

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
_PAGE = 1_000  # entries
_TAB_S = 3.0  # a user waits for the completion

SERVER_OPTION = click.option(
    "--server", "url", metavar="URL", help="The server's address (PROCGUARD_SERVER)."
)


# What to run, by the code of the problem. The web page offers the same by a click.
_COMMANDS = {
    "no-group": "groups lists them",
    "no-worker": "workers lists them",
    "no-node": "nodes lists them",
    "no-run": "runs {group} lists them",
    "no-workers": "move WORKER… --group {group}",
    "no-master": "set {group} --master-addr NODE, the one that rank 0 runs on",
    "group-active": "stop {group}",
    "group-at-rest": "runs {group} shows how the last run ended",
}


class ServerUnreachableError(LaunchError):
    """The server does not answer, or cannot serve requests now. Try again."""

    exit_code = 75


class ApiClient:
    """A client of one server. As a context manager, it closes its connections at the end."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.url = url
        with needs_procguard():
            import httpx
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # Otherwise httpx loads certificates for http too, which takes 70 ms.
            verify = urlsplit(url).scheme != "http"
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, verify=verify)
        except (httpx.InvalidURL, ValueError, OSError) as error:
            raise UsageError(f"server {url!r}: {escaped(str(error))}") from error

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int | None) -> Any:
        """Return the answer to a GET request."""
        return self._json(
            "GET", path, params={key: value for key, value in query.items() if value is not None}
        )

    def all(self, path: str, key: str) -> list[dict[str, Any]]:
        """Return a whole list, which the API sends in pages; ``key`` identifies an entry."""
        found: list[dict[str, Any]] = []
        while len(found) % _PAGE == 0:
            page = self.get(path, limit=_PAGE, after=found[-1][key] if found else "")
            found += page
            if not page:
                break
        return found

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Request a change; return the answer."""
        return self._json(method, path, json=body)

    def _json(self, method: str, path: str, **more: Any) -> Any:
        import httpx

        try:
            response = self._http.request(method, f"/api/v1{path}", **more)
        except httpx.HTTPError as error:
            reason = escaped(str(error)) or type(error).__name__
            hint = "is it running, and is this its address? pass another with --server or PROCGUARD_SERVER"
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                hint = "for a certificate of your own, set SSL_CERT_FILE to its file"
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
    """Return the hint for a rejection or a problem: a command of this program, if there is one for it."""
    name = click.get_current_context().params.get("name")
    known = _COMMANDS.get(str(problem.get("code")), "")
    return f"procguard ctl {known.format(group=name or 'GROUP')}" if known else str(problem.get("hint") or "")


def _of_flag(problem: dict[str, Any]) -> str:
    """Return what is wrong with the flag behind a field of the API, empty if there is no such flag."""
    field = str(problem["values"].get("field", "")).removeprefix("settings.").partition(".")[0]
    flags = (one.opts[0] for one in click.get_current_context().command.params if one.name == field)
    what = str(problem["text"]).partition(": ")[2]
    return next((f"{flag}: {what}" for flag in flags), "")


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a command its client (from --server and variables) and whether --format asks for JSON."""

    @click.pass_context
    def command(context: click.Context, /, url: str | None, form: str, **values: Any) -> Any:
        with ApiClient(*server(Environment.of_this_process(), url)) as client:
            return context.invoke(function, client, as_json=form == "json", **values)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return SERVER_OPTION(json_or_table(command))


def segment(name: str) -> str:
    """Return a name quoted for a URL's path."""
    return quote(name, safe="")


def _completion(path: str, key: str) -> Callable[..., Any]:
    """Return a shell completion of names that the server knows."""

    def known(context: click.Context) -> list[str]:
        url = context.params.get("url")
        with ApiClient(*server(Environment.of_this_process(), url), timeout_s=_TAB_S) as client:
            return [one[key] for one in (client.get(path) if path == "/groups" else client.all(path, key))]

    return completion.names(known)


GROUPS = _completion("/groups", "name")
WORKERS = _completion("/workers", "worker")
NODES = _completion("/nodes", "node")
