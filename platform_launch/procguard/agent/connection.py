"""The agent's requests to the server, and their errors."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from platform_launch.errors import InputError, shown
from platform_launch.procguard.agent.state import StateFolder
from platform_launch.procguard.api.wire import (
    JOIN_TOKEN,
    ForeignGpuProcess,
    Heartbeat,
    JoinAnswer,
    JoinRequest,
    LogReceived,
    MachineReport,
    QuarantineReport,
    RanksReceived,
    RanksSeen,
    WorkerOrders,
    WorkerReport,
)
from platform_launch.text import Phrase

_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_UNAUTHORIZED = 401
NAME_TAKEN = 409
_SERVERS_TOKEN = f"pass the server's join token with --token-file or {JOIN_TOKEN}"

Answer = TypeVar("Answer", bound=BaseModel)


class RequestError(Exception):
    """A request to the server failed. ``status`` is the HTTP status, 0 without an answer."""

    def __init__(self, text: str, hint: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.what, self.hint = text, hint
        self.text = f"{text} ({hint})" if hint else text
        self.status = status


class AgentConnection:
    """A connection to the server at ``url``; thread-safe. Proxy variables are ignored.

    Raises InputError if ``ca_file`` cannot be read.
    """

    def __init__(
        self, url: str, join: JoinRequest, state: StateFolder, *, token: str | None, ca_file: Path | None
    ) -> None:
        self.url = url.rstrip("/")
        self._join = join
        self._state = state
        self._token = token
        self._joined_as = join.model_dump_json()  # changed flags require joining again
        self._credential = state.credential(self.url, self._joined_as)
        self._client = httpx.Client(
            base_url=self.url,
            timeout=_TIMEOUT,
            # httpx would load the certificates for http too, which takes 70 ms.
            verify=_trust(ca_file) if ca_file else urlsplit(url).scheme != "http",
            trust_env=False,
            headers={"User-Agent": f"procguard-agent/{join.version}"},
        )

    def beat(
        self,
        reports: Sequence[WorkerReport],
        machine: MachineReport | None = None,
        quarantine: QuarantineReport | None = None,
        gpu_processes: Sequence[ForeignGpuProcess] = (),
    ) -> WorkerOrders:
        """Send a heartbeat; join first if the server does not know this agent. Raises RequestError."""
        if self._credential is None:
            self._join_in()
        content = Heartbeat(
            node=self._join.node,
            instance=self._join.instance,
            machine=machine,
            quarantine=quarantine,
            gpu_processes=tuple(gpu_processes),
            workers=tuple(reports),
        )
        try:
            return self._post("/api/v1/agent/heartbeat", WorkerOrders, content.model_dump_json().encode())
        except RequestError as error:
            if error.status != _UNAUTHORIZED:
                raise
        self._join_in()
        return self._post("/api/v1/agent/heartbeat", WorkerOrders, content.model_dump_json().encode())

    def send_log(self, number: int, generation: int, offset: int, chunk: bytes) -> int:
        """Send a chunk of a run's output; return how many bytes the server has now. Raises RequestError."""
        path = f"/api/v1/agent/log?number={number}&generation={generation}&offset={offset}"
        return self._post(path, LogReceived, chunk, kind="application/octet-stream").offset

    def send_ranks(self, seen: RanksSeen) -> None:
        """Answer an inspection. Raises RequestError."""
        self._post("/api/v1/agent/ranks", RanksReceived, seen.model_dump_json().encode())

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _join_in(self) -> None:
        if self._token is None:
            raise RequestError("this agent has no join token", _SERVERS_TOKEN, _UNAUTHORIZED)
        self._credential = self._token
        proof = self._join.model_copy(update={"credential": self._state.credential(self.url) or ""})
        try:
            joined = self._post("/api/v1/agent/join", JoinAnswer, proof.model_dump_json().encode())
        except RequestError as error:
            self._credential = None
            raise _as_join(error, self._join.node) from error
        self._credential = joined.credential
        try:
            self._state.save_credential(self.url, self._joined_as, joined.credential)
        except OSError as error:
            raise RequestError(
                f"{self._state.path}: {error.strerror}: the credential was not saved"
            ) from error

    def _post(
        self, path: str, answer: type[Answer], content: bytes, *, kind: str = "application/json"
    ) -> Answer:
        headers = {"Content-Type": kind}
        if self._credential is not None:
            headers["Authorization"] = f"Bearer {self._credential}"
        try:
            response = self._client.post(path, content=content, headers=headers)
        except httpx.TimeoutException as error:
            raise RequestError(f"{self.url} did not answer in time") from error
        except (httpx.HTTPError, UnicodeError) as error:  # UnicodeError: an invalid host name
            reason = str(error) or type(error).__name__
            raise RequestError(f"cannot reach {self.url}: {reason}", _hint(error)) from error
        if response.status_code != httpx.codes.OK:
            raise _refused(self.url, response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            text = f"{self.url} answers {shown(response.text)}, which is not an answer of a ProcGuard server"
            raise RequestError(text, "check --server") from error


def _trust(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            Phrase("--ca-file {file}: {problem}", file=ca_file, problem=error.strerror or error),
            "expected a PEM file with the server's certificate authority",
        ) from error


def _as_join(error: RequestError, node: str) -> RequestError:
    if error.status == _UNAUTHORIZED:
        return RequestError(f"wrong join token: {error.text}", _SERVERS_TOKEN, error.status)
    if error.status == NAME_TAKEN:
        hint = "give each agent its own --node; if that agent is gone, remove the node on the server"
        return RequestError(f"another agent has the name {node}: {error.text}", hint, error.status)
    return error


def _refused(url: str, response: httpx.Response) -> RequestError:
    """Return the error of an answer: the server's own message if it is one of this API."""
    try:
        answer = response.json()
        text, hint = str(answer["error"]), str(answer.get("hint", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        text, hint = f"HTTP {response.status_code}", "check --server and any proxy in front of the server"
    return RequestError(f"{url}: {shown(text, 400)[1:-1]}", shown(hint, 400)[1:-1], response.status_code)


def _hint(error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "pass the authority that signed the server's certificate with --ca-file"
    return ""
