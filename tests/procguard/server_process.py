"""``procguard server`` as a process of its own, gone at the end of the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.lab.waiting import LIMIT_S, until
from tests.procguard.serving import NO_CERTIFICATES

_ADDRESS = re.compile(r"ProcGuard\s+(https?://\S+)")


@dataclass
class Running:
    """A server that was started."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    @property
    def url(self) -> str:
        found = _ADDRESS.search(self.said)
        assert found, self.said
        return found[1]

    def login(self, name: str, password: str) -> httpx.Client:
        """Return a client of somebody who logs in."""
        client = httpx.Client(base_url=self.url, timeout=LIMIT_S, trust_env=False, verify=NO_CERTIFICATES)
        self.clients.append(client)
        answer = client.post("/api/v1/login", json={"name": name, "password": password})
        assert answer.status_code == 200, answer.text
        client.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        return client

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(by)
        return self.process.wait(LIMIT_S)


@contextmanager
def server(folder: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    """Run a server with its data in ``folder``, until the end of the block."""
    argv = (
        sys.executable,
        "-m",
        "platform_launch",
        "procguard",
        "server",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(folder),
        *flags,
    )
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    with subprocess.Popen(argv, env=variables, stderr=subprocess.PIPE, text=True) as process:
        running = Running(process)
        assert process.stderr is not None
        reader = threading.Thread(target=lambda: running.lines.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            until(lambda: "procguard agent" in running.said or process.poll() is not None)
            yield running
        finally:
            for client in running.clients:
                client.close()
            process.kill()
            process.wait()
            reader.join(LIMIT_S)
