"""A real server that can be killed, real agents, real trainings: and nothing of them left at the end."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx

from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.database import serving
from platform_launch.procguard.server.sessions import hash_password
from tests.lab.netns import Host
from tests.lab.port import reserved_port
from tests.lab.waiting import until
from tests.procguard.agent_lab import TOKEN, AgentNode, node_in
from tests.procguard.server_process import Running, server

PASSWORD = "operate-the-lab"
HEARTBEAT_S = 0.3

# Each start leaves a mark in the folder the agent starts commands in; a file there says how to end.
TRAIN = """
import os, pathlib, sys, time
with open("starts", "a") as starts:
    starts.write(os.environ["RANK"] + "\\n")
print("begun", flush=True)
end = pathlib.Path("end")
while not end.exists():
    time.sleep(0.05)
sys.exit(int(end.read_text()))
"""
# Needs a while to end, as one that saves a checkpoint does.
SLOW = f"import signal, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), exit(0)))\n{TRAIN}"


class Site:
    """A server at one address, and its nodes. Those that ``hosts`` has are on a host of their own."""

    def __init__(
        self, folder: Path, data: Path, stack: ExitStack, env: Mapping[str, str], listen: str
    ) -> None:
        self.hosts: dict[str, Host] = {}
        self.nodes: list[AgentNode] = []
        self.servers: list[Running] = []
        self._folder, self._data, self._stack = folder, data, stack
        self._env = {"PROCGUARD_JOIN_TOKEN": TOKEN, **env}
        (folder / "server.yaml").write_text(f"heartbeat_s: {HEARTBEAT_S}\n")
        with serving(f"sqlite:///{data / 'procguard.db'}") as database:
            database.users.add("olga", UserRole.OPERATOR, hash_password(PASSWORD))
        self._serve("--listen", listen)
        self.url = self.servers[0].url
        self.log_in()

    def log_in(self) -> None:
        """Begin a new session."""
        self.api = self.servers[-1].login("olga", PASSWORD)
        self.api.base_url = httpx.URL(f"{self.url}/api/v1")

    def kill(self) -> None:
        """Let the server die."""
        self.servers[-1].end(signal.SIGKILL)

    def start(self) -> None:
        """Start it again at the same address."""
        self._serve("--listen", self.url.removeprefix("http://"))

    def join(self, *names: str) -> list[AgentNode]:
        """Add nodes of one worker each, and wait until they are heard."""
        for name in names:
            node = self._stack.enter_context(node_in(self._folder / name, name))
            with self.hosts[name].entered() if name in self.hosts else nullcontext():
                node.start(self.url)
            self.nodes.append(node)
        self.wait_heard(*names)
        return self.nodes[-len(names) :]

    def wait_heard(self, *names: str) -> None:
        """Wait until nodes are heard."""
        until(lambda: all(self.worker(name)["heartbeat_age_s"] is not None for name in names), "heartbeats")

    def launch(self, code: str = TRAIN, **settings: Any) -> None:
        """Start all nodes as the group ``train``."""
        names = [node.name for node in self.nodes]
        command = shlex.join((sys.executable, "-u", "-c", code))
        port = self._stack.enter_context(reserved_port())  # other tests may hold the default
        # A host's address: agents started in a namespace read this machine's /etc/hosts all the same.
        master = self.hosts[names[0]].address if names[0] in self.hosts else names[0]
        wanted = GroupSettings(master_addr=master, master_port=port, command=command, **settings)
        document = {"name": "train", "settings": wanted.model_dump(mode="json")}
        self.done("POST", "groups", document)
        self.done("POST", "move", {"workers": [f"{name}-0" for name in names], "group": "train"})
        self.done("POST", "groups/train/start")

    def done(self, method: str, path: str, document: Any = None) -> None:
        """Ask for a change that is carried out."""
        answer = self.api.request(method, path, json=document)
        assert answer.is_success, answer.text

    def group(self) -> dict[str, Any]:
        """Return the group as it is."""
        found: dict[str, Any] = self.api.get("groups/train").json()
        return found

    def worker(self, node: str) -> dict[str, Any]:
        """Return a node's worker, as unheard where it has not joined."""
        found = {worker["node"]: worker for worker in self.api.get("workers").json()}
        return dict(found.get(node, {"heartbeat_age_s": None}))

    def reach(self, *phases: str) -> dict[str, Any]:
        """Wait for the group to be in a phase."""
        until(lambda: self.group()["phase"] in phases, f"{phases}: {self.group()}")
        return self.group()

    def pids(self) -> list[int]:
        """Return the trainings' processes, once all are known."""
        names = [node.name for node in self.nodes]
        try:
            until(lambda: all(self.worker(name)["pid"] for name in names), "a process on each node")
        except AssertionError as error:
            raise AssertionError(f"{self.group()} {self.actions()}") from error
        return [self.worker(name)["pid"] for name in names]

    def starts(self) -> list[int]:
        """Return how often each node started a training."""
        marks = [node.work / "starts" for node in self.nodes]
        return [len(mark.read_text().split()) if mark.exists() else 0 for mark in marks]

    def actions(self) -> list[str]:
        """Return what happened, oldest first."""
        return [event["action"] for event in reversed(self.api.get("events").json())]

    def only_agents_are_left(self) -> None:
        """Wait until no training and no supervisor is there."""
        until(lambda: all(len(node.processes()) == 1 for node in self.nodes), "trainings to be gone")

    def _serve(self, *flags: str) -> None:
        config = ("--config", str(self._folder / "server.yaml"))
        started = self._stack.enter_context(server(self._data, *config, *flags, env=self._env))
        assert started.process.poll() is None, started.said
        self.servers.append(started)


def end_training(node: AgentNode, code: int) -> None:
    """Let a node's training end by itself."""
    new = node.work / "end.new"
    new.write_text(str(code))
    new.rename(node.work / "end")


@contextmanager
def site(
    folder: Path,
    *names: str,
    data: Path | None = None,
    env: Mapping[str, str] | None = None,
    listen: str = "127.0.0.1:0",
) -> Iterator[Site]:
    """Give a server and nodes. At the end only agents may run, and the server had no trouble of its own.

    ``data`` is the server's folder where it is not in ``folder``.
    """
    with ExitStack() as stack:
        made = Site(folder, data or folder / "data", stack, env or {}, listen)
        if names:
            made.join(*names)
        yield made
        made.only_agents_are_left()
        for node in made.nodes:
            assert node.end() == 0
            assert not node.processes()
        for one in made.servers:
            no_trouble(one.lines)


def no_trouble(lines: Sequence[str]) -> None:
    """Assert that a server's log tells of no fault of its own."""
    said = "".join(lines)
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
