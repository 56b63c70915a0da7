"""A real server on a real socket, in a thread; agents and people who speak to it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.server.assembly import ServerParts, assembled
from platform_launch.procguard.server.run import configured, listening
from platform_launch.procguard.server.sessions import hash_password
from platform_launch.procguard.server.settings import ServerSettings
from tests.lab.waiting import LIMIT_S, until

TOKEN = "a join token of tests"
# Without certificates, which take 70 ms to load: httpx loads them for http too.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
PASSWORD = "correct horse battery"


@cache
def hashed_password() -> str:
    """PASSWORD as accounts keep it; hashing takes long by design, so it is done once."""
    return hash_password(PASSWORD)


@dataclass
class Served:
    """A server that answers at ``url``; ``op`` and ``viewer`` may log in with PASSWORD."""

    url: str
    parts: ServerParts
    data: Path
    clients: list[httpx.Client] = field(default_factory=list)
    credentials: dict[str, str] = field(default_factory=dict)
    """Of the fake agents, by node: one that joins again shows its own."""

    def client(self, token: str | None = None) -> httpx.Client:
        """Return a client, with a token in its header or without."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(
            base_url=self.url, headers=headers, timeout=LIMIT_S, trust_env=False, verify=NO_CERTIFICATES
        )
        self.clients.append(client)
        return client

    def token(self, name: str) -> str:
        """Log in, past the limit of tries."""
        account = self.parts.accounts.find(name)
        assert account is not None
        return self.parts.sessions.begin(account)[0]

    def person(self, name: str = "op") -> httpx.Client:
        """Return a client of somebody who is logged in."""
        return self.client(self.token(name))


@contextmanager
def served(data: Path, **settings: Any) -> Iterator[Served]:
    """Serve until the end of the block."""
    wanted = ServerSettings(data=data, listen="127.0.0.1:0", **settings)
    with assembled(wanted, TOKEN) as parts:
        for name, role in (("op", UserRole.OPERATOR), ("viewer", UserRole.VIEWER)):
            if parts.accounts.find(name) is None:
                parts.accounts.add(name, role, hashed_password())
        with listening(wanted) as listener:
            port = listener.getsockname()[1]
            server = uvicorn.Server(configured(parts, wanted, asyncio.Event()))
            thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
            thread.start()
            until(lambda: server.started)
            found = Served(f"http://127.0.0.1:{port}", parts, data)
            try:
                yield found
            finally:
                for client in found.clients:
                    client.close()
                server.should_exit = True
                thread.join(LIMIT_S)
                assert not thread.is_alive(), "the server did not end"


class FakeAgent:
    """A node whose workers do at once what they are told, over the wire."""

    def __init__(self, served: Served, node: str, workers: int = 1) -> None:
        self.node, self.workers = node, workers
        self.instance = f"instance-of-{node}"
        join = {"node": node, "instance": self.instance, "workers": workers, "hostname": f"{node}.lan"}
        join["credential"] = served.credentials.get(node, "")
        joined = served.client(TOKEN).post("/api/v1/agent/join", json=join | {"command": ["sleep", "9"]})
        assert joined.status_code == 200, joined.text
        served.credentials[node] = joined.json()["credential"]
        self.http = served.client(served.credentials[node])
        self.quarantine: dict[str, Any] = {}
        self.machine: dict[str, Any] = {}
        self.reports: dict[int, dict[str, Any]] = {
            number: {"number": number, "state": "idle", "generation": 0} for number in range(workers)
        }

    def beat(self) -> dict[str, Any]:
        """Send a heartbeat and do what its answer says; return the orders by number."""
        workers = list(self.reports.values())
        body: dict[str, Any] = {"node": self.node, "instance": self.instance, "workers": workers}
        body |= {"quarantine": self.quarantine} if self.quarantine else {}
        body |= {"machine": self.machine} if self.machine else {}
        answer = self.http.post("/api/v1/agent/heartbeat", json=body)
        assert answer.status_code == 200, answer.text
        orders: dict[str, Any] = answer.json()["orders"]
        for number, order in orders.items():
            self._obey(int(number), order)
        return orders

    def end(self, number: int, exit_code: int) -> None:
        """Let a worker's process end."""
        self.reports[number] |= {"state": "exited", "exit_code": exit_code, "ended_s_ago": 0.0}

    def _obey(self, number: int, order: dict[str, Any]) -> None:
        report = self.reports[number]
        same = report["generation"] == order["generation"]
        if order["action"] == "prepare" and not (same and report["state"] != "idle"):
            report |= {"state": "ready", "generation": order["generation"]}
        elif order["action"] == "run" and same and report["state"] == "ready":
            report |= {"state": "running", "pid": 4711}
        elif order["action"] == "stop" and report["state"] in ("running", "ready"):
            self.reports[number] = {"number": number, "state": "idle", "generation": order["generation"]}
