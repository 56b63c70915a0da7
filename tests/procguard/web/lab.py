"""The real server with its page, and agents that run nothing but speak HTTP as real ones do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Locator, Page

from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.api.wire import (
    GpuReport,
    Heartbeat,
    JoinRequest,
    OrderAction,
    QuarantineReport,
    WorkerOrder,
    WorkerOrders,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.database import serving
from platform_launch.procguard.server.sessions import hash_password
from platform_launch.why.answer.verdict import Verdict
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S, until

JOIN_TOKEN = "web-lab-join-token"
PASSWORDS = {"ada": "who-logs-in-here", "olga": "operate-the-lab", "vera": "viewing-the-lab"}

Visit = Callable[..., Page]
"""Opens a path of the server as ``who``, an operator where nobody is named."""


class Lab:
    """The server. It can be stopped and started again at the same address, with the same data."""

    def __init__(self, folder: Path, port: int) -> None:
        address = f"127.0.0.1:{port}"
        self.url = f"http://{address}"
        serve = f"-m platform_launch procguard server --listen {address} --data"
        self._command = [sys.executable, *serve.split(), str(folder)]
        with serving(f"sqlite:///{folder / 'procguard.db'}") as database:
            roles = (UserRole.ADMIN, UserRole.OPERATOR, UserRole.VIEWER)
            for name, role in zip(PASSWORDS, roles, strict=True):
                database.users.add(name, role, hash_password(PASSWORDS[name]))
        self.api = httpx.Client(base_url=f"{self.url}/api/v1", timeout=LIMIT_S)
        self.start()
        token = self.api.post("login", json={"name": "olga", "password": PASSWORDS["olga"]}).json()["token"]
        self.api.headers["Authorization"] = f"Bearer {token}"

    def start(self) -> None:
        """Serve."""
        env = {**os.environ, "PROCGUARD_JOIN_TOKEN": JOIN_TOKEN}
        self._process = subprocess.Popen(self._command, env=env)
        until(self._answers, "the server answers")

    def stop(self) -> None:
        """Stop serving; the data stays."""
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def close(self) -> None:
        """End, whatever happened."""
        self.api.close()
        self._process.kill()
        self._process.wait()

    def group(self, name: str, workers: list[str], settings: GroupSettings) -> None:
        """Create a group."""
        document = {"name": name, "settings": settings.model_dump(mode="json")}
        assert self.api.post("groups", json=document).is_success
        assert self.api.post("move", json={"workers": workers, "group": name}).is_success

    def phase(self, name: str) -> str:
        """Return a group's phase."""
        return str(self.api.get(f"groups/{name}").json()["phase"])

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the server ended"
        try:
            return self.api.get(f"{self.url}/readyz").is_success
        except httpx.TransportError:
            return False


@contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """Serve from a folder."""
    with reserved_port() as port:
        server = Lab(folder, port)
        try:
            yield server
        finally:
            server.close()


class Agent:
    """A node: heartbeats in a thread of its own, and does at once what is wanted, without a process.

    ``end`` makes a running worker exit; ``write`` sends log of its run; ``quiet`` stops the heartbeats; in
    ``quarantine`` it is until somebody releases it.
    """

    def __init__(self, url: str, node: str, workers: int, allowed: tuple[str, ...] | None = None) -> None:
        self.node = node
        self.instance = f"instance-of-{node}"
        self.reports = {
            number: WorkerReport(number=number, state=WorkerState.IDLE) for number in range(workers)
        }
        self.quiet = False
        self.quarantine: QuarantineReport | None = None
        self._http = httpx.Client(base_url=url, timeout=LIMIT_S)
        self._ready: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._leave = threading.Event()
        join = JoinRequest(
            node=node,
            instance=self.instance,
            workers=workers,
            hostname=f"{node}.lab",
            command=("train",),
            allowed=allowed,
        )
        answer = self._post("join", join.model_dump(mode="json"), JOIN_TOKEN)
        self._credential = answer.json()["credential"]
        self._thread = threading.Thread(target=self._beat_on)
        self._thread.start()

    def end(
        self,
        number: int,
        exit_code: int,
        verdict: str = "",
        cause_line: int | None = None,
        made_from: Verdict | None = None,
    ) -> None:
        """Let a worker's process end."""
        why = {"verdict": verdict, "cause_line": cause_line, "why": made_from}
        self._report(number, state=WorkerState.EXITED, exit_code=exit_code, ended_s_ago=0.0, **why)

    def show_gpu(self, number: int, percent: float, count: int = 1) -> None:
        """Report the use of GPUs."""
        gpus = tuple(
            GpuReport(
                index=index,
                name="NVIDIA H100",
                utilization_percent=percent,
                memory_used_gib=0.7 * percent,
                memory_total_gib=80,
            )
            for index in range(count)
        )
        self._report(number, gpus=gpus)

    def write(self, number: int, content: bytes) -> None:
        """Send more of a worker's log."""
        report = self.reports[number]
        query = f"number={number}&generation={report.generation}&offset={report.log_bytes}"
        answer = self._http.post(f"/api/v1/agent/log?{query}", content=content, headers=self._bearer())
        assert answer.status_code == 200, answer.text
        self._report(number, log_bytes=report.log_bytes + len(content))

    def close(self) -> None:
        """End."""
        self._leave.set()
        self._thread.join()
        self._http.close()

    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._credential}"}

    def _report(self, number: int, **news: object) -> None:
        with self._lock:
            self.reports[number] = self.reports[number].model_copy(update=news)

    def _post(self, what: str, document: object, token: str) -> httpx.Response:
        answer = self._http.post(
            f"/api/v1/agent/{what}", json=document, headers={"Authorization": f"Bearer {token}"}
        )
        assert answer.status_code == 200, answer.text
        return answer

    def _beat_on(self) -> None:
        while not self._leave.wait(0.2):
            if self.quiet:
                continue
            beat = Heartbeat(
                node=self.node,
                instance=self.instance,
                quarantine=self.quarantine,
                workers=tuple(self.reports.values()),
            )
            try:
                answer = self._post("heartbeat", beat.model_dump(mode="json"), self._credential)
            except httpx.TransportError:
                continue  # the server is away
            wanted = WorkerOrders.model_validate(answer.json())
            if self.quarantine is not None and wanted.release == self.quarantine.since:
                self.quarantine = None
            for number, order in wanted.orders.items():
                self._follow(number, order)

    def _follow(self, number: int, order: WorkerOrder) -> None:
        report = self.reports[number]
        if order.action is OrderAction.STOP and report.state in (WorkerState.RUNNING, WorkerState.READY):
            self._report(
                number, state=WorkerState.EXITED, exit_code=143, ended_s_ago=0.0, stop_requested=True
            )
        elif order.action is OrderAction.PREPARE and report.generation < order.generation:
            self._ready.add((number, order.generation))
            with self._lock:
                self.reports[number] = WorkerReport(
                    number=number, state=WorkerState.READY, generation=order.generation, gpus=report.gpus
                )
        elif order.action is OrderAction.RUN and (number, order.generation) in self._ready:
            self._ready.discard((number, order.generation))
            self._report(number, state=WorkerState.RUNNING, pid=40_000 + number)


def log_in(page: Page, name: str, password: str) -> None:
    """Fill in the form that everybody meets first."""
    page.locator("[name=name]").fill(name)
    page.locator("[name=password]").fill(password)
    page.keyboard.press("Enter")


def badge(page: Page, group: str) -> Locator:
    """Return what a group's card says of its phase."""
    return page.locator(f"[id='group-{group}'] .badge")
