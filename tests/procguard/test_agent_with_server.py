"""Real agents under the real server: two nodes with two workers each, on this machine."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.database import serving
from platform_launch.procguard.server.sessions import hash_password
from tests.lab.needs import takes_long
from tests.lab.waiting import until
from tests.procguard.agent_lab import TOKEN, AgentNode, node_in
from tests.procguard.server_process import Running, server

PASSWORD = "operate-the-lab"
WORKERS = ["localhost-0", "localhost-1", "node7-0", "node7-1"]
SHOW = (
    "import os; e = os.environ; "
    "print(f\"[Rank {e['RANK']}] World Size: {e['WORLD_SIZE']}, Local Rank: {e['LOCAL_RANK']}, "
    "Node Rank: {e['NODE_RANK']}, Master Addr: {e['MASTER_ADDR']}\")"
)
SLEEP = "import time; print('begun', flush=True); time.sleep(300)"


class Lab:
    """A server that can die and come back at the same address, with the same data."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        with serving(f"sqlite:///{folder / 'procguard.db'}") as database:
            database.users.add("olga", UserRole.OPERATOR, hash_password(PASSWORD))
        self._serve()
        self.url = self._running.url
        self.api = self._running.login("olga", PASSWORD)
        self.api.base_url = httpx.URL(f"{self.url}/api/v1")

    def _serve(self, *flags: str) -> None:
        env = {"PROCGUARD_JOIN_TOKEN": TOKEN}
        self._running: Running = self._stack.enter_context(server(self._folder, *flags, env=env))

    def kill(self) -> None:
        self._running.end(signal.SIGKILL)

    def start(self) -> None:
        self._serve("--listen", self.url.removeprefix("http://"))

    def phase(self) -> str:
        return str(self.api.get("groups/train").json()["phase"])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path_factory.mktemp("server"), stack)


@pytest.fixture(scope="module")
def nodes(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AgentNode]]:
    with ExitStack() as stack:
        found = []
        for name in ("localhost", "node7"):
            node = stack.enter_context(node_in(tmp_path_factory.mktemp(name) / name, name))
            node.start(lab.url, workers=2)
            found.append(node)
        until(lambda: [worker["worker"] for worker in workers(lab)] == WORKERS, "all workers")
        until(lambda: all(worker["heartbeat_age_s"] is not None for worker in workers(lab)), "heartbeats")
        yield found


def workers(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.api.get("workers").json()
    return found


def launch(lab: Lab, code: str) -> None:
    command = shlex.join((sys.executable, "-u", "-c", code))
    settings = GroupSettings(master_addr="localhost", backend="gloo", command=command, grace_s=10)
    if lab.api.get("groups/train").status_code == 404:
        document = {"name": "train", "settings": settings.model_dump(mode="json")}
        assert lab.api.post("groups", json=document).is_success
        assert lab.api.post("move", json={"workers": WORKERS, "group": "train"}).is_success
    else:
        changed = lab.api.put("groups/train/settings", json=settings.model_dump(mode="json"))
        assert changed.is_success, changed.text
    started = lab.api.post("groups/train/start")
    assert started.is_success, started.text


def reach(lab: Lab, phase: str) -> dict[str, Any]:
    until(lambda: lab.phase() == phase, f"{phase}: {lab.api.get('groups/train').text}")
    group: dict[str, Any] = lab.api.get("groups/train").json()
    return group


@takes_long
def test_every_worker_gets_its_place_and_its_log_is_shown(lab: Lab, nodes: list[AgentNode]) -> None:
    launch(lab, SHOW)
    reach(lab, "finished")
    for rank, worker in enumerate(WORKERS):
        place = f"Local Rank: {rank % 2}, Node Rank: {rank // 2}, Master Addr: localhost"
        line = f"[Rank {rank}] World Size: 4, {place}"
        until(lambda w=worker, text=line: text in lab.api.get(f"workers/{w}/log").text, "the log")  # type: ignore[misc]


@takes_long
def test_one_failure_ends_all_and_is_named_with_its_cause(lab: Lab, nodes: list[AgentNode]) -> None:
    launch(lab, f"import os\nif os.environ['RANK'] == '2': {{}}['lr']\n{SLEEP}")
    failure = reach(lab, "failed")["failure"]
    assert (failure["worker"], failure["exit_code"]) == ("node7-0", 1)
    until(lambda: "KeyError" in lab.api.get("groups/train").json()["failure"]["verdict"], "the verdict")
    why = lab.api.get("groups/train").json()["failure"]["why"]
    assert (why["cause"], why["exception"]["type"]) == ("python_exception", "KeyError")
    states = {worker["worker"]: worker["state"] for worker in workers(lab)}
    assert states == dict.fromkeys(WORKERS, "exited")


@takes_long
def test_server_and_agent_come_and_go_and_the_training_stays(lab: Lab, nodes: list[AgentNode]) -> None:
    launch(lab, SLEEP)
    reach(lab, "running")
    until(lambda: all(worker["pid"] for worker in workers(lab)), "four processes")
    pids = [worker["pid"] for worker in workers(lab)]
    lab.kill()
    nodes[1].kill()
    lab.start()
    nodes[1].start(lab.url, workers=2)
    until(lambda: [worker["pid"] for worker in workers(lab)] == pids, "the same processes")
    assert reach(lab, "running")["failure"] is None
    assert lab.api.post("groups/train/stop").is_success
    reach(lab, "stopped")
    until(lambda: all(len(node.processes()) == 1 for node in nodes), "only agents to be left")
