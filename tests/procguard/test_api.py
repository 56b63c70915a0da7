"""The API over a real socket: agents join and beat, people make groups, logs go up and down."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.lab.waiting import LIMIT_S, until
from tests.procguard.serving import TOKEN, FakeAgent, Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api"), log_limit_mib=1) as found:
        yield found


def post(client: httpx.Client, path: str, body: object = None, status: int = 200) -> Any:
    answer = client.post(f"/api/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def phase(client: httpx.Client, name: str) -> str:
    return str(client.get(f"/api/v1/groups/{name}").json()["phase"])


def test_a_group_from_its_creation_to_its_end(server: Served) -> None:
    people = server.person()
    nodes = [FakeAgent(server, "gn6", 2), FakeAgent(server, "gn10", 2)]
    workers = ["gn6-0", "gn6-1", "gn10-0", "gn10-1"]
    listed = [worker["worker"] for worker in people.get("/api/v1/workers").json()]
    assert set(workers) <= set(listed)

    settings = {"master_addr": "gn6", "backend": "gloo", "command": "python train.py --lr 1e-3"}
    made = post(people, "/groups", {"name": "flow", "settings": settings}, 201)
    assert (made["phase"], made["settings"]["master_port"]) == ("idle", 29500)
    post(people, "/groups", {"name": "flow"}, 409)
    refused = post(people, "/groups/flow/start", status=409)
    assert "no-workers" in [problem["code"] for problem in refused["problems"]]

    post(people, "/move", {"workers": workers, "group": "flow"}, 204)
    ranks = people.get("/api/v1/groups/flow/ranks").json()
    assert [place["worker"] for place in ranks["places"]] == workers
    preview = post(people, "/groups/flow/preview", settings | {"master_addr": "gn10"})
    assert preview["places"][0]["worker"] == "gn10-0"
    assert people.get("/api/v1/groups/flow").json()["settings"]["master_addr"] == "gn6"

    assert post(people, "/groups/flow/start")["changed"] is True
    assert post(people, "/groups/flow/start")["changed"] is False
    post(people, "/move", {"workers": ["gn6-0"], "group": None}, 409)

    def beat_until(wanted: str) -> None:
        def reached() -> bool:
            for node in nodes:
                node.beat()
            return phase(people, "flow") == wanted

        until(reached)

    beat_until("running")
    order = nodes[0].beat()["0"]
    assert order["command"] == ["python", "train.py", "--lr", "1e-3"]
    assert (order["environment"]["RANK"], order["environment"]["WORLD_SIZE"]) == ("0", "4")
    for node in nodes:
        for number in range(2):
            node.end(number, 0)
    beat_until("finished")
    seen = {(event["action"], event["who"]) for event in people.get("/api/v1/events").json()}
    assert {("create", "op"), ("move", "op"), ("start", "op")} <= seen

    assert post(people, "/groups/flow/restart")["group"]["generation"] > order["generation"]
    assert post(people, "/groups/flow/stop")["changed"] is True
    beat_until("stopped")
    assert people.delete("/api/v1/groups/flow").status_code == 204
    assert people.get("/api/v1/groups/flow").status_code == 404


def test_a_log_goes_up_in_chunks_and_is_read_and_searched(server: Served) -> None:
    agent, people = FakeAgent(server, "logger"), server.person("viewer")
    text = "".join(f"step {n} <script>alert(1)</script> \x1b[31m红\n" for n in range(2000)).encode()

    def send(offset: int, data: bytes) -> int:
        query = {"number": 0, "generation": 3, "offset": offset}
        answer = agent.http.post("/api/v1/agent/log", params=query, content=data)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["offset"])

    assert send(0, text[:1000]) == 1000
    assert send(0, text[:500]) == 1000
    assert send(5000, text[5000:6000]) == 1000
    assert send(900, text[900:]) == len(text)

    path, ask = "/api/v1/workers/logger-0/log", people.get
    read, place = list[tuple[int, str]](), ""
    while True:
        page = ask(path, params={"after": place, "limit": 300}).json()
        assert (page["generation"], page["generations"]) == (3, [3])
        read, place = read + [(one["number"], one["text"]) for one in page["lines"]], page["after"]
        if not page["more"]:
            break
    assert read == list(enumerate(text.decode().splitlines(), 1))
    tail = ask(path, params={"limit": 2}).json()
    assert [one["number"] for one in tail["lines"]] == [1999, 2000]
    assert (tail["read"], tail["size"]) == (len(text), len(text))
    found = ask(path, params={"after": "", "search": "STEP 1234 "}).json()
    assert [match["number"] for match in found["lines"]] == [1235]
    around = ask(path, params={"offset": found["lines"][0]["offset"], "limit": 2}).json()
    assert ([one["number"] for one in around["lines"]], around["target"]) == (
        [1234, 1235],
        around["lines"][1]["place"],
    )
    assert ask(path, params={"generation": 9}).json()["lines"] == []

    download = ask(f"{path}/download")
    assert download.content == text
    assert download.headers["content-type"] == "text/plain; charset=utf-8"
    assert download.headers["content-disposition"] == 'attachment; filename="logger-0-run-3.log"'
    assert ask("/api/v1/workers/nobody-0/log").status_code == 404
    assert ask("/api/v1/workers/..%2F..%2Fetc-0/log").status_code == 404


def test_credentials_of_agents(server: Served) -> None:
    join = {"node": "secret", "instance": "12345678", "workers": 1}
    for token in (None, "wrong", TOKEN + "x", "ключ".encode().decode("latin-1")):
        headers = {b"Authorization": f"Bearer {token}".encode("latin-1")} if token is not None else {}
        answer = server.client().post("/api/v1/agent/join", json=join, headers=headers)
        assert answer.status_code == 401, token
    unstorable = server.client(TOKEN).post("/api/v1/agent/join", json=join | {"instance": "1234\0005678"})
    assert unstorable.status_code == 422  # PostgreSQL holds no zero byte
    agent = FakeAgent(server, "secret")
    other = FakeAgent(server, "other")
    beat = {"node": "other", "instance": other.instance, "workers": []}
    assert agent.http.post("/api/v1/agent/heartbeat", json=beat).status_code == 409
    for wrong in (TOKEN, server.token("op"), "nonsense"):
        answer = server.client(wrong).post("/api/v1/agent/heartbeat", json=beat)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    for number, status in ((0, 200), (1, 404)):  # the disk holds logs of workers that there are
        path = f"/api/v1/agent/log?number={number}&generation=1&offset=0"
        assert agent.http.post(path, content=b"x").status_code == status
    # An agent's credential opens nothing that is for people.
    assert agent.http.get("/api/v1/groups").status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"node":"gn6"}',
        b'{"node":"../x","instance":"12345678","workers":[]}',
        b"\xff\xfe",
        b'{"node":"bad","instance":"instance-of-bad","workers":[{"number":0,"state":"lost","ended_s_ago":Infinity}]}',
    ],
)
def test_malformed_heartbeats_are_refused_in_words(server: Served, body: bytes) -> None:
    agent = FakeAgent(server, "bad")
    answer = agent.http.post("/api/v1/agent/heartbeat", content=body)
    assert answer.status_code == 422
    assert answer.json()["error"]
    agent.beat()  # and the next one is answered


def test_bodies_that_are_too_long_are_refused_before_they_are_read(server: Served) -> None:
    agent, people = FakeAgent(server, "long"), server.person()

    def chunks(size: int) -> Iterator[bytes]:
        for _ in range(size // 65536):
            yield b" " * 65536

    mib = 1024 * 1024
    query = "number=0&generation=1&offset=0"
    for client, path, size in (
        (agent.http, "/api/v1/agent/heartbeat", 5 * mib),
        (agent.http, f"/api/v1/agent/log?{query}", mib),
        (people, "/api/v1/groups", 2 * mib),
        (server.client(), "/api/v1/login", mib),
    ):
        announced = client.post(path, content=b" " * size)
        assert announced.status_code == 413, path
        unannounced = client.post(path, content=chunks(size))
        assert (unannounced.status_code, "longer than" in unannounced.json()["error"]) == (413, True), path
    assert server.parts.logs.size("long-0", 1) == 0


def test_text_that_no_database_holds_is_refused_not_a_fault(server: Served) -> None:
    people = server.person()
    for name, field, value in (
        ("nul", "command", "a\0b"),
        ("half", "command", "\ud800"),
        ("newline", "master_addr", "gn6\nX=1"),
        ("half-key", "\ud800", 1),
        ("huge", "max_restarts", 10**30),
        ("nan", "backoff_s", float("nan")),
    ):
        body = json.dumps({"name": name, "settings": {field: value}})
        answer = people.post("/api/v1/groups", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, (name, answer.text)
        assert answer.json()["hint"]
    for name in ("../x", "a/b", "", "x" * 65, "-a", "a\0"):
        post(people, "/groups", {"name": name}, 422)


def test_every_error_has_the_same_form(server: Served) -> None:
    people = server.person()
    for method, path, status in (
        ("GET", "/api/v1/nothing", 404),
        ("PATCH", "/api/v1/groups", 405),
        ("GET", "/api/v1/groups/nothing", 404),
        ("GET", "/api/v1/workers/nothing", 404),
        ("GET", "/api/v1/events?limit=x", 422),
        ("DELETE", "/api/v1/nodes/nothing", 404),
    ):
        answer = people.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()) == {"error", "hint", "problems", "code", "values"}


def test_what_watches_the_server_needs_no_login_and_sees_no_names(server: Served) -> None:
    FakeAgent(server, "watched").beat()
    anybody = server.client()
    assert anybody.get("/healthz").json() == {"status": "ok"}
    assert anybody.get("/readyz").json() == {"status": "ok"}
    metrics = anybody.get("/metrics").text
    counted = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(counted["procguard_heartbeats_total"]) >= 1
    assert float(counted['procguard_workers{state="idle"}']) >= 1
    assert "watched" not in metrics


def test_many_agents_at_once_lose_nothing(server: Served) -> None:
    agents = [FakeAgent(server, f"many{n}") for n in range(8)]
    failures: list[BaseException] = []

    def work(agent: FakeAgent) -> None:
        try:
            have = 0
            for n in range(20):
                agent.beat()
                query = {"number": 0, "generation": 1, "offset": have}
                answer = agent.http.post("/api/v1/agent/log", params=query, content=b"%d\n" % n)
                have = answer.json()["offset"]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures
    sizes = {server.parts.logs.size(f"many{n}-0", 1) for n in range(8)}
    assert sizes == {sum(len(b"%d\n" % n) for n in range(20))}
