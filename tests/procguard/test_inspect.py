"""What the ranks of a running group do: a real agent asks real processes."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from platform_launch.cli.procguard import main
from platform_launch.observe.processes import ProcessState
from platform_launch.observe.snapshot import RankSnapshot
from platform_launch.observe.stacks import PythonFrame, ThreadStack
from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.wire import (
    Heartbeat,
    JoinRequest,
    QuarantineReport,
    RanksSeen,
    WorkerOrders,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.server.assembly import assembled
from platform_launch.procguard.server.inspections import Inspections
from platform_launch.procguard.server.routes.agents import answer_heartbeat
from platform_launch.procguard.server.settings import ServerSettings
from platform_launch.sentences import Sentence
from tests.lab.waiting import LIMIT_S, until
from tests.procguard.agent_lab import AgentNode, node_in
from tests.procguard.serving import TOKEN, FakeAgent, Served, served

TRAINING = """
import os, time
def waits_for_its_peer():
    print("begun", flush=True)
    time.sleep(3600)
def reads_its_shard():
    waits_for_its_peer()
reads_its_shard() if os.environ["RANK"] == "1" else waits_for_its_peer()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "server", heartbeat_s=0.2) as found:
        yield found


def run_a_group(people: httpx.Client, node: AgentNode, workers: int) -> None:
    """Let a group of one node's workers run, and wait for their first words."""
    post(people, "/groups", {"name": "train", "settings": settings()}, 201)
    post(people, "/groups/train/inspect", status=409)
    names = [f"{node.name}-{number}" for number in range(workers)]
    until(lambda: {one["worker"] for one in people.get("/api/v1/workers").json()} >= set(names))
    post(people, "/move", {"workers": names, "group": "train"}, 204)
    until(lambda: people.post("/api/v1/groups/train/start").status_code == 200)  # once the agent is heard
    until(lambda: all("begun" in people.get(f"/api/v1/workers/{one}/log").text for one in names))


def settings() -> dict[str, Any]:
    command = shlex.join((sys.executable, "-c", TRAINING))
    return {"master_addr": "localhost", "backend": "gloo", "command": command, "grace_s": 5}


def post(client: httpx.Client, path: str, body: object = None, status: int = 200) -> Any:
    answer = client.post(f"/api/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def test_ranks_are_seen_with_their_stacks_by_operators_alone(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROCGUARD_TOKEN", server.token("op"))
    people = server.person()
    assert server.client().post("/api/v1/agent/ranks", json={}).status_code == 401
    with node_in(tmp_path / "node", "localhost") as node:
        node.start(server.url, workers=2, token=TOKEN)
        run_a_group(people, node, 2)
        answers: list[dict[str, Any]] = []

        def both_answer() -> bool:  # a busy machine may answer after the server's limit
            answers.append(post(people, "/groups/train/inspect"))
            return bool(answers[-1]["ranks"] == 2)

        until(both_answer)
        seen = answers[-1]
        assert (seen["ranks"], seen["nodes"], seen["silent"]) == (2, 1, [])
        assert all("waits_for_its_peer" in line for line in seen["lines"])
        assert sum("reads_its_shard" in line for line in seen["stacks"]) == 1
        assert seen["moved_s_ago"] >= 0
        post(server.person("viewer"), "/groups/train/inspect", status=403)
        assert main(("ctl", "inspect", "train", "--stacks", "--server", server.url)) == 0
        assert "reads_its_shard" in capsys.readouterr().out


def test_of_many_ranks_a_page_gets_what_fits_it_and_a_file_gets_all(server: Served) -> None:
    people, agent = server.person(), FakeAgent(server, "gn6", 64)
    other = FakeAgent(server, "gn7", 6)
    names = [f"gn6-{number}" for number in range(64)] + [f"gn7-{number}" for number in range(6)]
    # On a busy machine agents may be silent for long: nobody gives the group up.
    limits = {"silent_after_s": LIMIT_S, "fail_after_s": LIMIT_S}
    wanted = {"master_addr": "gn6", "command": "train", **limits}
    post(people, "/groups", {"name": "train", "settings": wanted}, 201)
    post(people, "/move", {"workers": names, "group": "train"}, 204)
    post(people, "/groups/train/start")

    def running() -> bool:
        orders = {**agent.beat(), **other.beat()}
        reports = (*agent.reports.values(), *other.reports.values())
        return bool(orders) and all(report["state"] == "running" for report in reports)

    until(running)
    agent.beat()
    other.beat()
    found: dict[str, Any] = {}

    def inspected(query: str) -> dict[str, Any]:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(post, people, f"/groups/train/inspect{query}")

            def answered() -> bool:
                tell(agent, 0)
                tell(other, 64)
                return asked.done()

            until(answered)
        found.update(asked.result())
        return found

    # On a busy machine the server's limit may come before the last answer.
    until(lambda: inspected("")["ranks"] == len(names))
    assert (found["more_ranks"], found["more_places"]) == (6, 15)
    assert (len(found["lines"]), count_ranks(found["stacks"])) == (20, 64)
    line = found["sentences"]["lines"][-1]
    assert (line["code"], english(Sentence.read(line))) == ("place", found["lines"][-1])
    told = inspected("?language=zh")
    assert all("，" not in line and "：/job/train.py" in line for line in told["lines"])
    assert told["sentences"]["lines"][-1]["code"] == "place"
    assert "  主线程" in told["stacks"]
    until(lambda: inspected("?whole=true")["ranks"] == len(names))
    assert (found["more_ranks"], found["more_places"]) == (0, 0)
    assert (len(found["lines"]), count_ranks(found["stacks"])) == (35, 70)


def tell(agent: FakeAgent, first: int) -> None:
    """Answer what a node is asked: two ranks each are at a place of their own."""
    body = {"node": agent.node, "instance": agent.instance, "workers": list(agent.reports.values())}
    answer = agent.http.post("/api/v1/agent/heartbeat", json=body).json()
    for number, question in answer.get("questions", {}).items():
        rank = first + int(number)
        stack = ThreadStack(True, (PythonFrame("/job/train.py", rank // 2, "step"),))
        snapshot = RankSnapshot(rank, rank, ProcessState(100 + rank, "python", "S"), (stack,))
        seen = RanksSeen(number=int(number), question=question, ranks=(snapshot,))
        taken = agent.http.post("/api/v1/agent/ranks", json=seen.model_dump(mode="json"))
        assert taken.status_code == 200, taken.text


def count_ranks(lines: list[str]) -> int:
    return sum(line.startswith("rank ") for line in lines)


def test_two_who_ask_at_once_ask_once_and_late_answers_are_left() -> None:
    async def asked() -> None:
        inspections, worker = Inspections(), WorkerName("gn6", 3)
        both = asyncio.gather(*(inspections.ask("train", [worker], 60) for _ in range(2)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ((number, question),) = inspections.of("gn6").items()
        seen = RanksSeen(number=number, question=question)
        assert not inspections.answer(worker, seen.model_copy(update={"question": "another"}))
        assert inspections.answer(worker, seen)
        assert await both == [{worker: seen}] * 2
        assert not inspections.answer(worker, seen)
        assert inspections.of("gn6") == {}

    asyncio.run(asked())


def test_nobody_answers_in_time() -> None:
    inspections = Inspections()
    assert asyncio.run(inspections.ask("train", [WorkerName("gn6", 0)], 0.01)) == {}
    assert inspections.of("gn6") == {}


def test_a_question_and_the_end_of_a_quarantine_travel_in_one_answer(tmp_path: Path) -> None:
    worker = WorkerName("gn6", 0)
    beat = Heartbeat(
        node="gn6",
        instance="instance-of-gn6",
        quarantine=QuarantineReport(name="gn6", since=5.0),
        workers=(WorkerReport(number=0, state=WorkerState.IDLE),),
    )

    async def asked() -> None:
        inspections = parts.inspections
        asking = asyncio.create_task(inspections.ask("train", [worker], 60))
        until_asked = 0
        while not inspections.of("gn6"):
            until_asked += 1
            assert until_asked < 100
            await asyncio.sleep(0)
        both = answered()
        assert (both.release, set(both.orders), set(both.questions)) == (5.0, {0}, {0})
        seen = RanksSeen(number=0, question=both.questions[0])
        assert inspections.answer(worker, seen)
        assert await asking == {worker: seen}
        assert (answered().release, answered().questions) == (5.0, {})

    def answered() -> WorkerOrders:
        return answer_heartbeat(parts, "gn6", beat.model_dump_json().encode())

    with assembled(ServerSettings(data=tmp_path / "server", listen="127.0.0.1:0"), TOKEN) as parts:
        parts.control.join(JoinRequest(node="gn6", instance="instance-of-gn6", workers=1, hostname="gn6"))
        assert (answered().release, answered().questions) == (None, {})
        parts.control.release("gn6", "op")
        asyncio.run(asked())
