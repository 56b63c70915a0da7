"""What the agents of a cluster cost a ProcGuard server: heartbeat latency, memory, CPU, and the page.

    python benchmarks/procguard_load.py [NODES...]        (default 300)

The server is the real one, in a process of its own. One other process is all agents: a kept connection each,
a heartbeat every 2 s, spread evenly, with 8 workers that each have a GPU whose use changes; 64 nodes are a
group that is started and stopped all the time, and do what they are told. A latency counts from the moment
the heartbeat was due, so that a late generator makes it worse and never better. Meanwhile somebody looks at
the page.

The peer is the floor of any server in Python: Starlette on uvicorn that parses the same JSON and answers the
same number of bytes, always the same.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import psutil
import uvloop

from platform_launch.procguard.api.wire import GpuReport, Heartbeat, JoinRequest, WorkerReport, WorkerState

EVERY_S = 2.0
MEASURED_S = 20.0
GROUP = 64
WORKERS = 8
FIRST_GOAL = 300
GOAL_P99_S, GOAL_RSS_MB, GOAL_PAGE_S = 0.1, 400, 0.3
HEARTBEAT = "/api/v1/agent/heartbeat"
PAGES = ("/", "/fragments/groups", "/fragments/workers")

SERVER = "import sys; from platform_launch.cli.procguard import main; sys.exit(main())"
PEER = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
ORDER = b'{"action":"stop","generation":0,"command":[],"environment":{},"check_port":null,"grace_s":25.0}'
ANSWER = b'{"orders":{' + b",".join(b'"%d":' % one + ORDER for one in range(8)) + b'},"heartbeat_s":2.0}'
async def beat(request):
    await request.json()
    return Response(ANSWER, media_type="application/json")
app = Starlette(routes=[Route("/api/v1/agent/heartbeat", beat, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, loop="uvloop", http="httptools",
            backlog=4096, timeout_keep_alive=75)
"""


def request(path: str, credential: str, body: bytes) -> bytes:
    """Return the bytes of a POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: load\r\nAuthorization: Bearer {credential}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def reports(node: str, **said: Any) -> list[bytes]:
    """Return the bodies of heartbeats that say the same, but for the use of a GPU."""
    bodies = []
    for percent in (7, 53, 86, 99):
        workers = tuple(
            WorkerReport(
                number=number,
                gpus=(
                    GpuReport(
                        index=number,
                        name="NVIDIA H100 80GB HBM3",
                        utilization_percent=percent,
                        memory_used_gib=61.3,
                        memory_total_gib=79.6,
                    ),
                ),
                **said,
            )
            for number in range(WORKERS)
        )
        beat = Heartbeat(node=node, instance=f"load-{node}", workers=workers)
        bodies.append(beat.model_dump_json().encode())
    return bodies


class Agent(asyncio.Protocol):
    """One agent on one kept connection. ``took`` gets each latency, ``failures`` what went wrong."""

    def __init__(self, node: str, *, follows: bool, took: list[float], failures: list[str]) -> None:
        self._node, self._follows, self._took, self._failures = node, follows, took, failures
        self._credential = "none"
        self._requests: list[bytes] = []
        self._known = (WorkerState.IDLE, 0)
        self._buffer = b""
        self._sent = 0
        self._due = 0.0
        self._waiting: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read on until an answer is whole."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        self._buffer = b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._failures.append(head.split(b"\r\n")[0].decode())
        if self._waiting is not None:
            self._waiting.set_result(body)
            self._waiting = None
            return
        self._took.append(time.monotonic() - self._due)
        self._due = 0.0
        if self._follows:
            self._follow(json.loads(body)["orders"]["0"])

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so."""
        if self._due or exc:
            self._failures.append(f"connection lost: {exc}")

    async def join(self, token: str) -> None:
        """Become a node of the server."""
        join = JoinRequest(
            node=self._node, instance=f"load-{self._node}", workers=WORKERS, hostname=f"{self._node}.load"
        )
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        answer = self._waiting
        self._transport.write(request("/api/v1/agent/join", token, join.model_dump_json().encode()))
        self._credential = json.loads(await answer)["credential"]

    def beat_on(self, at: float) -> None:
        """Send a heartbeat when it is due, from now on."""
        asyncio.get_running_loop().call_at(at + EVERY_S, self.beat_on, at + EVERY_S)
        if self._due:
            self._failures.append("no answer before the next heartbeat was due")
        else:
            self._beat(at)

    def _beat(self, due: float) -> None:
        if not self._requests:
            state, generation = self._known
            bodies = reports(self._node, state=state, generation=generation)
            self._requests = [request(HEARTBEAT, self._credential, body) for body in bodies]
        self._sent += 1
        self._due = due
        assert self._transport is not None
        self._transport.write(self._requests[self._sent % len(self._requests)])

    def _follow(self, order: dict[str, Any]) -> None:
        """Do what is wanted, and say so at once, as agents do."""
        state, generation = self._known
        if order["action"] == "prepare" and order["generation"] > generation:
            self._known = (WorkerState.READY, order["generation"])
        elif order["action"] == "run" and state is WorkerState.READY:
            self._known = (WorkerState.RUNNING, generation)
        elif order["action"] == "stop" and state in (WorkerState.READY, WorkerState.RUNNING):
            self._known = (WorkerState.IDLE, generation)
        if self._known != (state, generation):
            self._requests = []
            self._beat(time.monotonic())


def generate(pipe: Connection, port: int, agents: int, token: str) -> None:
    """Be all agents: join, tell so, and on a word measure for a while."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    uvloop.run(_generate(pipe, port, agents, token))


async def _generate(pipe: Connection, port: int, agents: int, token: str) -> None:
    loop = asyncio.get_running_loop()
    took: list[float] = []
    failures: list[str] = []
    joining = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with joining:
            agent = Agent(name(number), follows=bool(token) and number < GROUP, took=took, failures=failures)
            await loop.create_connection(lambda: agent, "127.0.0.1", port)
            if token:
                await agent.join(token)
            at = begin + EVERY_S * (number / agents + (loop.time() - begin) // EVERY_S + 1)
            loop.call_at(at, agent.beat_on, at)

    begin = loop.time() + 0.1
    await asyncio.gather(*(one(number) for number in range(agents)))
    await asyncio.sleep(2 * EVERY_S)
    failures.clear()  # while all joined at once, some waited
    pipe.send("all joined")
    await loop.run_in_executor(None, pipe.recv)
    took.clear()
    cpu = time.process_time()
    await asyncio.sleep(MEASURED_S)
    pipe.send((sorted(took), failures, (time.process_time() - cpu) / MEASURED_S))


def name(number: int) -> str:
    """Return a node's name."""
    return f"n{number:04}"


@dataclass
class Seen:
    """What one server did."""

    latencies: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    generator_cpu: float = 0.0
    server_cpu: float = 0.0
    rss_mb: float = 0.0
    joined_s: float = 0.0
    starts: int = 0
    pages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of the latencies in seconds."""
        return self.latencies[int(0.99 * len(self.latencies))]

    def line(self) -> str:
        """Return it as text."""
        p50, worst = statistics.median(self.latencies), self.latencies[-1]
        rate = len(self.latencies) / MEASURED_S
        return (
            f"{rate:5.0f}/s  p50 {p50 * 1e3:6.2f} ms  p99 {self.p99 * 1e3:6.2f} ms"
            f"  max {worst * 1e3:6.1f} ms  server {self.server_cpu:4.0%} of a core  {self.rss_mb:4.0f} MB"
            f"  (generator {self.generator_cpu:.0%})"
        )


@contextmanager
def running(argv: list[str], port: int) -> Iterator[psutil.Process]:
    """Run a server, and wait until it listens."""
    with subprocess.Popen([sys.executable, *argv], stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert process.poll() is None, f"{argv} ended by itself"
                assert time.monotonic() < until, f"{argv} does not listen"
                time.sleep(0.1)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def measure(server: psutil.Process, port: int, agents: int, token: str, look: Callable[[Seen], None]) -> Seen:
    """Let all agents beat; call ``look`` again and again meanwhile."""
    seen = Seen()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    generator = context.Process(target=generate, args=(theirs, port, agents, token))
    began = time.monotonic()
    generator.start()
    theirs.close()  # so that its end is seen
    try:
        assert ours.poll(300), "the agents do not come to their first heartbeat"
        ours.recv()
        seen.joined_s = time.monotonic() - began - 2 * EVERY_S
        ours.send("measure")
        cpu, until = sum(server.cpu_times()[:2]), time.monotonic() + MEASURED_S
        while not ours.poll(0):
            seen.rss_mb = max(seen.rss_mb, server.memory_info().rss / 1e6)
            look(seen)
            if time.monotonic() < until:
                seen.server_cpu = sum(server.cpu_times()[:2]) - cpu
        seen.server_cpu /= MEASURED_S
        seen.latencies, seen.failures, seen.generator_cpu = ours.recv()
    finally:
        generator.kill()
        generator.join()
    return seen


class Person:
    """Somebody who operates a group and has the page open."""

    def __init__(self, port: int, data: Path) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Content-Type": "application/json"}
        password = (data / "initial-password").read_text().strip()
        token = self.ask("POST", "/api/v1/login", {"name": "admin", "password": password})["token"]
        self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """Ask the API."""
        text = self._fetch(method, path, None if document is None else json.dumps(document))
        return json.loads(text) if text else None

    def look(self, seen: Seen) -> None:
        """Fetch what an open page fetches every second, and a page that is opened."""
        for path in PAGES:
            began = time.monotonic()
            self._fetch("GET", path, None)
            seen.pages.setdefault(path, []).append(time.monotonic() - began)
        time.sleep(1.0)

    def _fetch(self, method: str, path: str, body: str | None) -> bytes:
        try:
            self._http.request(method, path, body, self._headers)
            answer = self._http.getresponse()
        except ConnectionError:  # unused for longer than the server keeps a connection
            self._http.close()
            self._http.request(method, path, body, self._headers)
            answer = self._http.getresponse()
        text = answer.read()
        assert answer.status < 300, f"{method} {path}: {answer.status} {text[:300]!r}"
        return text


def procguard(agents: int) -> Seen:
    """Measure the real server."""
    with tempfile.TemporaryDirectory() as folder:
        data, config, port = Path(folder, "data"), Path(folder, "procguard.yaml"), free_port()
        config.write_text("nodes_limit: 100000\nnew_nodes_per_minute: 100000\n")
        config.chmod(0o600)
        argv = ["-c", SERVER, "server", "--listen", f"127.0.0.1:{port}", "--data", str(data)]
        argv += ["--config", str(config)]
        with running(argv, port) as server:
            leave, person, operator = threading.Event(), Person(port, data), Person(port, data)
            seen_by_operator = Seen()
            operating = threading.Thread(target=operate, args=(operator, leave, seen_by_operator))

            def look(seen: Seen) -> None:
                if operating.ident is None:
                    operating.start()
                person.look(seen)

            try:
                seen = measure(server, port, agents, (data / "join-token").read_text().strip(), look)
            finally:
                leave.set()
                if operating.ident is not None:
                    operating.join()
            seen.starts = seen_by_operator.starts
            return seen


def operate(person: Person, leave: threading.Event, seen: Seen) -> None:
    """Start and stop a group, again and again; count the starts that came to running."""
    person.ask(
        "POST", "/api/v1/groups", {"name": "load", "settings": {"master_addr": name(0), "command": "x"}}
    )
    workers = [f"{name(number)}-{one}" for number in range(GROUP) for one in range(WORKERS)]
    person.ask("POST", "/api/v1/move", {"workers": workers, "group": "load"})
    while not leave.is_set():
        person.ask("POST", "/api/v1/groups/load/start")
        while person.ask("GET", "/api/v1/groups/load")["phase"] != "running" and not leave.wait(0.5):
            pass
        seen.starts += not leave.wait(1.0)
        person.ask("POST", "/api/v1/groups/load/stop")
        while person.ask("GET", "/api/v1/groups/load")["phase"] == "stopping" and not leave.wait(0.5):
            pass


def peer(agents: int) -> Seen:
    """Measure the floor."""
    port = free_port()
    with running(["-c", PEER, str(port)], port) as server:
        return measure(server, port, agents, "", lambda _seen: time.sleep(1.0))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def show(agents: int) -> bool:
    """Measure both with so many agents; tell whether the goals are reached."""
    ours, floor = procguard(agents), peer(agents)
    print(f"{agents} nodes × {WORKERS} workers, a heartbeat every {EVERY_S:g} s, for {MEASURED_S:g} s")
    print(f"  procguard  {ours.line()}")
    print(f"  peer       {floor.line()}")
    print(f"  ratio      p99 {ours.p99 / floor.p99:.2f} ×  CPU {ours.server_cpu / floor.server_cpu:.2f} ×")
    print(f"  joined in {ours.joined_s:.1f} s; a group of {GROUP} came to running {ours.starts} times")
    for path, took in ours.pages.items():
        print(
            f"  GET {path:20} median {statistics.median(took) * 1e3:5.0f} ms  max {max(took) * 1e3:5.0f} ms"
        )
    for failure in sorted({*ours.failures, *floor.failures}):
        print(f"  {(ours.failures + floor.failures).count(failure)} × {failure}")
    sys.stdout.flush()
    fluent = max(statistics.median(took) for took in ours.pages.values()) < GOAL_PAGE_S
    return ours.p99 < GOAL_P99_S and ours.rss_mb < GOAL_RSS_MB and fluent and not ours.failures


def main() -> int:
    """Print both beside each other; fail if 300 nodes miss a goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="*", type=int, default=[FIRST_GOAL], help="default: %(default)s")
    sizes = parser.parse_args().agents
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if max(sizes) + 100 > hard:
        print(f"{max(sizes)} agents need as many open files, and {hard} are allowed: raise `ulimit -Hn`")
        return 2
    reached = {agents: show(agents) for agents in sizes}
    goals = f"p99 < {GOAL_P99_S * 1e3:g} ms, {GOAL_RSS_MB} MB, pages < {GOAL_PAGE_S * 1e3:g} ms"
    for agents, good in reached.items():
        print(f"{agents} agents: {'within' if good else 'outside'} {goals}")
    return 0 if reached.get(FIRST_GOAL, True) else 1


if __name__ == "__main__":
    sys.exit(main())
