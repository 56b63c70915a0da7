"""Calls of the server's API, with saved tokens. A refusal becomes an error in the reader's language."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click

from platform_launch.cli import completion
from platform_launch.cli.flags import json_or_table
from platform_launch.cli.procguard.extra import needs_procguard
from platform_launch.environment import Environment
from platform_launch.errors import InputError, LaunchError, UsageError
from platform_launch.files import PRIVATE, write_whole
from platform_launch.text import Phrase, escaped, joined

if TYPE_CHECKING:
    import httpx


class SavedTokens:
    """The file ``$XDG_CONFIG_HOME/procguard/tokens.json``."""

    def __init__(self, env: Environment) -> None:
        home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".config")
        self.path = Path(home) / "procguard" / "tokens.json"

    def read(self) -> dict[str, str]:
        """Return the token of each server; the last one is that of the last login."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(
                Phrase("{file} cannot be read: {problem}", file=self.path, problem=error),
                "remove it and log in again",
            ) from error
        if not isinstance(kept, dict):
            raise InputError(
                Phrase("{file} contains no tokens", file=self.path), "remove it and log in again"
            )
        return {str(url): str(token) for url, token in kept.items()}

    def save(self, url: str, token: str | None) -> None:
        """Save a server's token as the last one, or delete it. Raises InputError."""
        kept = {known: its for known, its in self.read().items() if known != url}
        if token is not None:
            kept[url] = token
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.path, json.dumps(kept, indent=2), mode=PRIVATE)
        except OSError as error:
            raise InputError(
                Phrase("{file} cannot be written: {problem}", file=self.path, problem=error.strerror)
            ) from error


def is_encrypted_or_local(url: str) -> bool:
    """Return whether nobody on the network can read what is sent to a server."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")


def server(env: Environment, url: str | None) -> tuple[str, str | None]:
    """Return the server to use and its token. Raises UsageError, InputError."""
    kept = SavedTokens(env).read()
    wanted = url or env.get("PROCGUARD_SERVER") or next(reversed(kept), None)
    if wanted is None:
        raise UsageError(
            "no server: expected --server, PROCGUARD_SERVER or an earlier login",
            "procguard ctl login --server http://127.0.0.1:8765",
        )
    wanted = wanted.strip().rstrip("/")
    if not wanted.startswith(("http://", "https://")):
        raise UsageError(Phrase("server {url!r}: expected http://HOST:PORT or https://HOST:PORT", url=wanted))
    return wanted, env.get("PROCGUARD_TOKEN") or kept.get(wanted)


_TIMEOUT_S = 30.0
_LISTED = 1_000  # per answer
_TAB_S = 3.0  # somebody is waiting for the Tab key

SERVER_OPTION = click.option(
    "--server", "url", metavar="URL", help="The server's address (default: PROCGUARD_SERVER)."
)


class ServerUnreachableError(LaunchError):
    """The server does not answer, or cannot work right now. Try again."""

    exit_code = 75


class ApiClient:
    """A connection to one server; use it as a context manager."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.url = url
        with needs_procguard():
            import httpx
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # httpx would load the certificates for http too, which takes 70 ms.
            verify = urlsplit(url).scheme != "http"
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, verify=verify)
        except (httpx.InvalidURL, ValueError, OSError) as error:
            raise UsageError(
                Phrase("server {url!r}: {problem}", url=url, problem=escaped(str(error)))
            ) from error

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int | None) -> Any:
        """Return the API's answer to a GET request."""
        return self._json(
            "GET", path, params={key: value for key, value in query.items() if value is not None}
        )

    def all(self, path: str, key: str) -> list[dict[str, Any]]:
        """Return a whole list that the API returns in pages; ``key`` is the field that identifies an
        entry.
        """
        found: list[dict[str, Any]] = []
        while len(found) % _LISTED == 0:
            page = self.get(path, limit=_LISTED, after=found[-1][key] if found else "")
            found += page
            if not page:
                break
        return found

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Send a change."""
        return self._json(method, path, json=body)

    def _json(self, method: str, path: str, **more: Any) -> Any:
        import httpx

        try:
            response = self._http.request(method, f"/api/v1{path}", **more)
        except httpx.HTTPError as error:
            reason = escaped(str(error)) or type(error).__name__
            hint = Phrase("check that it is running, and its address (--server or PROCGUARD_SERVER)")
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                hint = Phrase("set SSL_CERT_FILE to a file with your own certificate")
            raise ServerUnreachableError(
                Phrase("the server {url} does not answer: {problem}", url=self.url, problem=reason), hint
            ) from error
        return self._read(response)

    def _read(self, response: httpx.Response) -> Any:
        try:
            answer = response.json() if response.content else None
        except ValueError:
            answer = None
        if response.is_success and (answer is not None or not response.content):
            return answer
        status = response.status_code
        refusal = answer if isinstance(answer, dict) else {}
        problems = refusal.get("problems", ())
        command = click.get_current_context()
        if flags := [text for one in problems if (text := _flag_problem(one))]:
            hint = Phrase("see {where} --help", where=command.command_path)
            raise UsageError(joined(flags, "; "), hint)
        if not refusal:
            text = Phrase("{url} answered {status}", url=self.url, status=status)
            hint = Phrase("check that this is the address of a ProcGuard server")
        else:
            text, hint = problem_here(refusal)
            if found := [problem_here(one) for one in problems]:
                reasons = joined((what for what, _ in found), "; ")
                if refusal.get("code") == "cannot-start":
                    text = Phrase(text.template, **{**text.values, "reasons": reasons})
                    hint = joined((todo for _, todo in found if todo), "; ")
            if status == 401 and not response.request.url.path.endswith("/login"):
                hint = Phrase("procguard ctl login --server {url}", url=self.url)
        if status >= 500:
            raise ServerUnreachableError(text, hint or Phrase("try again"))
        raise UsageError(text, hint)


def problem_here(problem: dict[str, Any]) -> tuple[Phrase, Phrase]:
    """Return what is wrong and what to do, as a command if there is one. Unknown codes stay in English."""
    from platform_launch.procguard.api.refused import problem_phrases

    code, values = str(problem.get("code", "")), problem.get("values")
    try:
        given = values.items() if isinstance(values, dict) else ()
        text, hint = problem_phrases(code, {name: _clean(value) for name, value in given})
    except KeyError:
        text = Phrase("{text}", text=escaped(str(problem.get("error") or problem.get("text") or "")))
        hint = Phrase("{text}", text=escaped(str(problem.get("hint") or "")))
    return text, _command(code) or hint


def _clean(value: object) -> object:
    return [escaped(str(one)) for one in value] if isinstance(value, list) else escaped(str(value))


def _command(code: str) -> Phrase | None:
    """Return the command for what the page offers by a click, by the code of the problem."""
    group = click.get_current_context().params.get("name") or "NAME"
    return {
        "no-group": Phrase("procguard ctl groups lists them"),
        "no-worker": Phrase("procguard ctl workers lists them"),
        "no-node": Phrase("procguard ctl nodes lists them"),
        "no-run": Phrase("procguard ctl runs {group} lists them", group=group),
        "no-workers": Phrase("procguard ctl move WORKER… --group {group}", group=group),
        "no-master": Phrase(
            "procguard ctl set {group} --master-addr NODE, the node that runs rank 0", group=group
        ),
        "no-queue-workers": Phrase("procguard ctl set {group} --queue-workers N", group=group),
        "group-active": Phrase("procguard ctl stop {group}", group=group),
        "group-at-rest": Phrase("procguard ctl runs {group} lists its runs", group=group),
    }.get(code)


def _flag_problem(problem: dict[str, Any]) -> Phrase | None:
    """Return what is wrong with a field, named by its flag; None if no flag sets it."""
    field = str(problem["values"].get("field", "")).removeprefix("settings.").partition(".")[0]
    for option in click.get_current_context().command.params:
        if option.name == field:
            if problem.get("code") == "input-form":  # only the server knows what is expected
                what = escaped(str(problem["text"])).partition(": ")[2]
                return Phrase("{flag}: {problem}", flag=option.opts[0], problem=what)
            text, hint = problem_here(problem | {"values": {**problem["values"], "field": option.opts[0]}})
            return Phrase("{text}; {hint}", text=text, hint=hint) if hint else text
    return None


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a command its client, made from --server and the variables, and whether --format is json."""

    @click.pass_context
    def command(context: click.Context, /, url: str | None, form: str, **values: Any) -> Any:
        with ApiClient(*server(Environment.of_this_process(), url)) as client:
            return context.invoke(function, client, as_json=form == "json", **values)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return SERVER_OPTION(json_or_table(command))


def segment(name: str) -> str:
    """Return a name as a segment of a URL path."""
    return quote(name, safe="")


def offered(path: str, key: str) -> Callable[..., Any]:
    """Return the completion of names that the server knows."""

    def known(context: click.Context) -> list[str]:
        url = context.params.get("url")
        with ApiClient(*server(Environment.of_this_process(), url), timeout_s=_TAB_S) as client:
            return [one[key] for one in (client.get(path) if path == "/groups" else client.all(path, key))]

    return completion.names(known)


GROUPS = offered("/groups", "name")
WORKERS = offered("/workers", "worker")
NODES = offered("/nodes", "node")
