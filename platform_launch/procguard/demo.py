"""A whole ProcGuard on one machine, to try it: a server, four agents, and a training group."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from platform_launch.errors import LaunchError, UsageError, shown
from platform_launch.events import line
from platform_launch.hardware import ports
from platform_launch.helper import PACKAGE
from platform_launch.project import project_root
from platform_launch.supervise import Command, Watch
from platform_launch.text import Phrase

GROUP = "demo"
# The first is the master's, a name that every machine resolves. The others need not be resolvable.
NODES = ("localhost", "node2", "node3", "node4")
_READY_S = 60.0
_END_S = 40.0


@dataclass(frozen=True)
class Demo:
    """What to start: ``command`` is the group's, ``environment`` that of all processes."""

    folder: Path
    port: int
    command: str
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        """The page's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "server"

    def commands(self) -> dict[str, Command]:
        """Return the server and the agents, by the name of their log."""
        # By path: with -m, the working directory would decide what is imported.
        program = (sys.executable, f"{PACKAGE}/__main__.py", "procguard")
        at = f"127.0.0.1:{self.port}"
        token = str(self.data / "join-token")
        found: dict[str, tuple[str, ...]] = {
            "server": (*program, "server", "--listen", at, "--data", str(self.data))
        }
        for node in NODES:
            state = str(self.folder / node)
            agent = (*program, "agent", "--server", self.url, "--node", node, "--state", state)
            found[node] = (*agent, "--token-file", token, "--directory", str(self.folder))
        return {name: Command(argv, self.environment) for name, argv in found.items()}


def run_demo(demo: Demo, log: Callable[[str, str], None], ready: Callable[[str], None]) -> int:
    """Run it until a signal, and return the exit code; ``ready`` is called with the password of `admin`.

    Main thread only. Raises UsageError if its port is taken, LaunchError if a part exits by itself or the
    group cannot start.
    """
    trouble: list[str] = []
    names: dict[int, str] = {}
    _refuse_port_in_use(demo.port)
    demo.data.mkdir(parents=True, exist_ok=True, mode=0o700)

    def ended(pid: int, code: int) -> None:
        if watch.stopped_by is None:
            name = names[pid]
            text = "{name} has exited with code {code}: {line}"
            trouble.append(Phrase(text, name=name, code=code, line=_last_line(demo, name)))
            watch.stop(trouble[0])

    def set_up() -> None:
        try:
            ready(_set_up(demo, lambda: watch.stopped_by is not None))
        except (LaunchError, httpx.HTTPError, OSError, KeyError, ValueError) as error:
            if watch.stopped_by is not None:  # the server has exited, or never started
                return
            trouble.append(str(error) or type(error).__name__)
            watch.stop(trouble[0])

    watch = Watch(
        grace_s=_END_S, what="the demo", report=lambda event: log(event.level, line(event)), ended=ended
    )
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with watch:
            for name, command in demo.commands().items():
                if name != "server":
                    _wait(lambda: (demo.data / "join-token").exists(), "join token of the server")
                written = os.open(
                    demo.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
                )
                try:
                    names[watch.start(command, {0: nothing, 1: written, 2: written})] = name
                finally:
                    os.close(written)
            threading.Thread(target=set_up, daemon=True).start()
            watch.wait()
    finally:
        os.close(nothing)
    if trouble:
        raise LaunchError(trouble[0], "use --folder FOLDER to keep the log of each part")
    return 0


def _set_up(demo: Demo, leaving: Callable[[], bool]) -> str:
    """Create and start the group, unless it exists already. Returns the password of `admin`."""
    password = demo.data / "initial-password"
    _wait(lambda: leaving() or _answers(demo.url), "answer from the server")
    with httpx.Client(base_url=f"{demo.url}/api/v1", timeout=30, trust_env=False) as api:
        secret = password.read_text(encoding="utf-8").strip()
        answer = _checked(api.post("/login", json={"name": "admin", "password": secret}))
        api.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        workers = [f"{node}-0" for node in NODES]
        _wait(lambda: leaving() or _alive(api) >= set(workers), "heartbeats from the agents")
        settings = {
            "master_addr": NODES[0],
            "master_port": ports.free(),
            "backend": "gloo",
            "command": demo.command,
            "max_restarts": 3,
        }
        _checked(api.post("/groups", json={"name": GROUP, "settings": settings}))
        _checked(api.post("/move", json={"workers": workers, "group": GROUP}))
        _checked(api.post(f"/groups/{GROUP}/start"))
    return secret


def training_command() -> str:
    """Return the command of the example that trains on generated images."""
    script = project_root() / "examples" / "ddp" / "train.py"
    return shlex.join((sys.executable, str(script), "--steps", "100000", "--log-every", "50"))


def _refuse_port_in_use(port: int) -> None:
    """Raise UsageError if another server has the port: its answers would be mistaken for the demo's."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                Phrase("--port {port}: {problem}", port=port, problem=error.strerror),
                "choose another, or omit --port",
            ) from error


def _last_line(demo: Demo, name: str) -> str:
    """Return the last line of a part's log."""
    try:
        lines = (demo.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Phrase("no log")
    return shown(lines[-1], 400) if lines else Phrase("no output")


def _alive(api: httpx.Client) -> set[str]:
    found = _checked(api.get("/workers")).json()
    return {worker["worker"] for worker in found if worker["heartbeat_age_s"] is not None}


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _checked(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        what = f"{answer.request.method} {answer.request.url.path}"
        raise LaunchError(Phrase("{request}: {answer}", request=what, answer=answer.text[:400]))
    return answer


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _READY_S
    while not condition():
        if time.monotonic() > until:
            raise LaunchError(
                Phrase("no {what} within {limit} s", what=Phrase(what), limit=f"{_READY_S:g}"),
                "this machine may be very busy",
            )
        time.sleep(0.1)
