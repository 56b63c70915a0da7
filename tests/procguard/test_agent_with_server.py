"""Real agents under the real server: two nodes with two workers each, on this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from platform_launch.procguard.shapes import GroupSettings
from tests.procguard import web_lab
from tests.procguard.agent_lab import Node, node_in, wait_for

WORKERS = ["gn6-0", "gn6-1", "gn7-0", "gn7-1"]
SHOW = (
    "import os; e = os.environ; "
    "print(f\"[Rank {e['RANK']}] World Size: {e['WORLD_SIZE']}, Local Rank: {e['LOCAL_RANK']}, "
    "Node Rank: {e['NODE_RANK']}, Master Addr: {e['MASTER_ADDR']}\")"
)
SLEEP = "import time; print('begun', flush=True); time.sleep(300)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[web_lab.Lab]:
    with web_lab.lab(tmp_path_factory.mktemp("server")) as lab:
        yield lab


@pytest.fixture(scope="module")
def nodes(lab: web_lab.Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        found = []
        for name in ("gn6", "gn7"):
            node = stack.enter_context(node_in(tmp_path_factory.mktemp(name) / name, name))
            node.start(lab.url, workers=2, token=web_lab.JOIN_TOKEN)
            found.append(node)
        wait_for(lambda: [worker["worker"] for worker in workers(lab)] == WORKERS, "all workers")
        wait_for(lambda: all(worker["heartbeat_age_s"] is not None for worker in workers(lab)), "heartbeats")
        yield found
        lab.api.post("groups/train/stop")


def workers(lab: web_lab.Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.api.get("workers").json()
    return found


def launch(lab: web_lab.Lab, code: str) -> None:
    command = shlex.join((sys.executable, "-u", "-c", code))
    settings = GroupSettings(master_addr="gn6", backend="gloo", command=command, grace_s=10)
    if lab.api.get("groups/train").status_code == 404:
        lab.group("train", WORKERS, settings)
    else:
        changed = lab.api.put("groups/train/settings", json=settings.model_dump(mode="json"))
        assert changed.is_success, changed.text
    started = lab.api.post("groups/train/start")
    assert started.is_success, started.text


def reach(lab: web_lab.Lab, phase: str) -> dict[str, Any]:
    wait_for(lambda: lab.phase("train") == phase, f"{phase}: {lab.api.get('groups/train').text}")
    group: dict[str, Any] = lab.api.get("groups/train").json()
    return group


def test_every_worker_gets_its_place_and_its_log_is_shown(lab: web_lab.Lab, nodes: list[Node]) -> None:
    launch(lab, SHOW)
    reach(lab, "finished")
    for rank, worker in enumerate(WORKERS):
        line = (
            f"[Rank {rank}] World Size: 4, Local Rank: {rank % 2}, Node Rank: {rank // 2}, Master Addr: gn6"
        )
        wait_for(lambda w=worker, text=line: text in lab.api.get(f"workers/{w}/log").text, "the log")  # type: ignore[misc]


def test_one_failure_ends_all_and_is_named_with_its_cause(lab: web_lab.Lab, nodes: list[Node]) -> None:
    launch(lab, f"import os\nif os.environ['RANK'] == '2': {{}}['lr']\n{SLEEP}")
    failure = reach(lab, "failed")["failure"]
    assert (failure["worker"], failure["exit_code"]) == ("gn7-0", 1)
    wait_for(lambda: "KeyError" in lab.api.get("groups/train").json()["failure"]["verdict"], "the verdict")
    states = {worker["worker"]: worker["state"] for worker in workers(lab)}
    assert states == dict.fromkeys(WORKERS, "exited")


def test_server_and_agent_come_and_go_and_the_training_stays(lab: web_lab.Lab, nodes: list[Node]) -> None:
    launch(lab, SLEEP)
    reach(lab, "running")
    wait_for(lambda: all(worker["pid"] for worker in workers(lab)), "four processes")
    pids = [worker["pid"] for worker in workers(lab)]
    lab.stop()
    nodes[1].kill()
    lab.start()
    nodes[1].start(lab.url, workers=2, token=web_lab.JOIN_TOKEN)
    wait_for(lambda: [worker["pid"] for worker in workers(lab)] == pids, "the same processes")
    assert reach(lab, "running")["failure"] is None
    assert lab.api.post("groups/train/stop").is_success
    reach(lab, "stopped")
    wait_for(lambda: all(len(node.processes()) == 1 for node in nodes), "only agents to be left")
