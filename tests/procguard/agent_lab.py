"""A small server that speaks the wire, real agents and supervisors, all ended after each test."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from platform_launch.hardware import running
from platform_launch.procguard.agent.records import MARKER
from platform_launch.procguard.api.wire import (
    ForeignGpuProcess,
    Heartbeat,
    JoinRequest,
    QuarantineReport,
    WorkerOrder,
    WorkerReport,
    WorkerState,
)
from tests.lab.waiting import LIMIT_S, until

ROOT = Path(__file__).parents[2]
TOKEN = "join-token-of-the-test"
MAIN = "import sys; from platform_launch.cli.procguard import main; sys.exit(main())"


class WireServer:
    """The other side of the wire: holds orders, keeps what agents say."""

    def __init__(self) -> None:
        self.orders: dict[int, WorkerOrder] = {}
        self.reports: dict[int, WorkerReport] = {}
        self.joins: list[JoinRequest] = []
        self.seen: list[WorkerReport] = []
        self.logs: dict[tuple[int, int], bytes] = {}
        self.credential = "credential-1"
        self.taken = False
        self.beats = 0
        self.gpu_processes: tuple[ForeignGpuProcess, ...] = ()
        self.quarantines: list[QuarantineReport | None] = []
        self._http: _Http | None = None
        self._port = 0
        self._encryption: tuple[Path, Path] | None = None
        self.hang = threading.Event()
        self.waiting = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._encryption else 'http'}://127.0.0.1:{self._port}"

    def encrypt(self, certificate: Path, key: Path) -> None:
        """Speak TLS after the next start."""
        self._encryption = certificate, key

    def start(self) -> None:
        self._http = _Http(("127.0.0.1", self._port), _handler(self))
        self._port = self._http.server_port
        if self._encryption:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._encryption)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http.end_connections()
            self._http = None

    def order(self, number: int, order: WorkerOrder) -> None:
        self.orders[number] = order

    def state(self, number: int = 0) -> tuple[WorkerState, int] | None:
        report = self.reports.get(number)
        return (report.state, report.generation) if report else None

    def wait(self, state: WorkerState, generation: int, number: int = 0) -> WorkerReport:
        until(
            lambda: self.state(number) == (state, generation), f"{state.value} {generation}: {self.reports}"
        )
        return self.reports[number]

    def answer(
        self, path: str, query: Mapping[str, list[str]], body: bytes, bearer: str
    ) -> tuple[int, object]:
        if path.endswith("/join"):
            if bearer != TOKEN:
                return 401, {"error": "wrong join token", "hint": ""}
            if self.taken:
                return 409, {"error": "another agent is gn6", "hint": ""}
            self.joins.append(JoinRequest.model_validate_json(body))
            return 200, {"credential": self.credential, "heartbeat_s": 0.1}
        if bearer != self.credential:
            return 401, {"error": "unknown credential", "hint": ""}
        if path.endswith("/log"):
            number, generation, offset = (int(query[name][0]) for name in ("number", "generation", "offset"))
            return 200, {"offset": self._take(number, generation, offset, body)}
        beat = Heartbeat.model_validate_json(body)
        for report in beat.workers:
            self.reports[report.number] = report
            self.seen.append(report)
        self.beats += 1
        self.quarantines.append(beat.quarantine)
        self.gpu_processes = beat.gpu_processes
        orders = {
            number: order.model_copy(
                update={"log_offset": len(self.logs.get((number, order.generation), b""))}
            ).model_dump(mode="json")
            for number, order in self.orders.items()
        }
        return 200, {"orders": orders, "heartbeat_s": 0.1}

    def _take(self, number: int, generation: int, offset: int, body: bytes) -> int:
        have = self.logs.get((number, generation), b"")
        if offset <= len(have):
            have += body[len(have) - offset :]
            self.logs[number, generation] = have
        return len(have)


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: object) -> None:
        self._sockets: list[object] = []
        super().__init__(*arguments)  # type: ignore[arg-type]

    def process_request(self, request: object, client_address: object) -> None:
        self._sockets.append(request)
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def end_connections(self) -> None:
        """Cut what agents keep open, as a server that dies does."""
        for request in self._sockets:
            with suppress(OSError):
                request.shutdown(2)  # type: ignore[attr-defined]


def _handler(server: WireServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
            parts = urlsplit(self.path)
            if server.hang.is_set():
                server.waiting += 1
                while server.hang.is_set():
                    time.sleep(0.02)
            status, document = server.answer(parts.path, parse_qs(parts.query), body, bearer)
            data = json.dumps(document).encode()
            with suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class AgentNode:
    """A node: its agent's state folder and process."""

    def __init__(self, folder: Path, name: str = "gn6") -> None:
        self.name = name
        self.folder = folder
        self.state = folder / "state"
        self.work = folder / "work"
        self.said = folder / "agent.err"
        self.work.mkdir(parents=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        url: str,
        *flags: str,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        token: str | None = TOKEN,
    ) -> subprocess.Popen[bytes]:
        words = ["agent", "--server", url, "--node", self.name, "--workers", str(workers)]
        words += ["--state", str(self.state), "--directory", str(self.work), *flags]
        variables = {**os.environ, **(env or {}), "PYTHONPATH": str(ROOT)}
        if token is not None:
            variables["PROCGUARD_JOIN_TOKEN"] = token
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN, *words], env=variables, stdin=subprocess.DEVNULL, stderr=said
            )
        return self.process

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(LIMIT_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def run_folder(self, generation: int, number: int = 0) -> Path:
        return self.state / "runs" / str(number) / str(generation)

    def supervisor(self, generation: int, number: int = 0) -> int:
        pid: int = json.loads((self.run_folder(generation, number) / "supervisor.json").read_text())["pid"]
        return pid

    def ended(self, generation: int, number: int = 0) -> dict[str, Any] | None:
        """Return what the supervisor of a run wrote of its end, None before that."""
        with suppress(OSError):
            path = self.run_folder(generation, number) / "supervisor.json"
            ended: dict[str, Any] | None = json.loads(path.read_text()).get("ended")
            return ended
        return None

    def processes(self) -> list[running.Process]:
        """Return every process of this node: agent, supervisors, trainings and what they started."""
        found = []
        for process in running.running():
            words = b""
            with suppress(OSError):
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            ours = str(self.state).encode() in words and process.pid != os.getpid()
            if ours or (running.variable(process.pid, MARKER) or "").startswith(f"{self.instance}:"):
                found.append(process)
        return found

    @property
    def instance(self) -> str:
        with suppress(OSError, ValueError):
            return str(json.loads((self.state / "agent.json").read_text())["instance"])
        return "none yet"

    def clear(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for process in self.processes():
            running.end(process, signal.SIGKILL)
        until(lambda: not self.processes(), "processes of the test to end")


@contextmanager
def node_in(folder: Path, name: str = "gn6") -> Iterator[AgentNode]:
    node = AgentNode(folder, name)
    try:
        yield node
    finally:
        node.clear()


@contextmanager
def serving() -> Iterator[WireServer]:
    server = WireServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
