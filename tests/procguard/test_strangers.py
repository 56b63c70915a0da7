"""What somebody who has no credential, or not the right one, can do to a server: little, and it is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import httpx
import pytest
from limits import RateLimitItemPerMinute

from platform_launch.errors import InputError
from platform_launch.procguard.api.shapes.history import EventFilter
from platform_launch.procguard.database import serving
from platform_launch.procguard.database import store as store_module
from platform_launch.procguard.server.settings import read_settings
from platform_launch.procguard.server.throttle import Throttle, TooMany
from platform_launch.sentences import quoted
from tests.lab.effects import ROOT
from tests.lab.needs import requires_root
from tests.procguard.serving import PASSWORD, TOKEN, FakeAgent, Served, served

JOIN = {"node": "gn6", "instance": "instance-of-gn6", "workers": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("strangers")) as found:
        yield found


def test_bodies_of_strangers_are_not_read(server: Served) -> None:
    def long() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    known = server.person()
    assert known.post("/api/v1/groups", content=b" " * 200_000).status_code == 422
    for client in (server.client(), server.client("nobody's"), server.client("x.y.z")):
        for path in ("/api/v1/groups", "/api/v1/move", "/api/v1/agent/join", "/fragments/groups/x/ranks"):
            answer = client.post(path, content=b" " * 20_000)
            assert (answer.status_code, answer.json()["error"]) == (
                413,
                "the body is longer than 16384 bytes",
            ), path
            with suppress(httpx.WriteError):  # the connection may end before the rest was sent
                assert client.post(path, content=long()).status_code == 413


def test_a_living_agent_is_replaced_by_nobody_without_its_credential(server: Served) -> None:
    agent = FakeAgent(server, "alive")
    agent.beat()
    wanted = {**JOIN, "node": "alive", "instance": agent.instance}
    join = server.client(TOKEN)
    for credential in ({}, {"credential": "guessed"}):
        assert join.post("/api/v1/agent/join", json=wanted | credential).status_code == 409
    agent.beat()
    mine = agent.http.headers["Authorization"].partition(" ")[2]
    answer = join.post("/api/v1/agent/join", json=wanted | {"credential": mine})
    assert answer.status_code == 200
    assert agent.http.post("/api/v1/agent/heartbeat", json={}).status_code == 401, "the older one is over"


def test_failed_joins_are_counted_told_and_throttled(server: Served) -> None:
    client = server.client("a wrong token")
    codes = [client.post("/api/v1/agent/join", json={**JOIN, "node": "wrong"}).status_code for _ in range(32)]
    assert codes == [401] * 30 + [429] * 2
    assert server.client(TOKEN).post("/api/v1/agent/join", json={**JOIN, "node": "right"}).status_code == 200
    events = server.person().get("/api/v1/events").json()
    told = [event for event in events if event["action"] == "join-failed"]
    assert [(event["object"], event["detail"]) for event in told] == [
        ("wrong", "wrong join token, from 127.0.0.1")
    ]
    server.parts.meter._texts.clear()
    assert 'procguard_joins_total{result="failed"} 32.0' in server.client().get("/metrics").text.splitlines()


def test_metrics_are_made_once_a_second(server: Served) -> None:
    meter = server.parts.meter
    first = meter.text()
    meter.heartbeats.inc()
    assert meter.text() is first
    meter._texts.clear()
    assert meter.text() != first


def test_a_flood_from_elsewhere_does_not_lock_out_who_was_just_logged_in() -> None:
    many = RateLimitItemPerMinute(100_000)
    throttle = Throttle(many, many)
    throttle.count("10.0.0.1", "ann")
    throttle.succeeded("10.0.0.1", "ann")
    for number in range(59):
        throttle.count(f"192.0.2.{number}", "ann")
    with pytest.raises(TooMany):
        throttle.count("192.0.2.200", "ann")
    throttle.count("10.0.0.1", "ann")
    with pytest.raises(TooMany):
        throttle.count("10.0.0.2", "ann")


def test_events_of_agents_push_nobodys_out(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "KEPT_EVENTS", 100)
    monkeypatch.setattr(store_module, "_FORGET_EVERY", 10)
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    with serving(database_url) as database:
        with database.store.change() as change:
            change.event(at, "ann", "start", "g", quoted("run 1"))
            for _ in range(300):
                change.event(at, "server", "rejoined", "gn6", quoted("again"))
        found = database.store.events(None, 1000, EventFilter())
        assert 20 <= len([event for event in found if event.action == "rejoined"]) < 40
        assert [event.who for event in found if event.action == "start"] == ["ann"]
        assert len(database.store.events(None, 1000, EventFilter(who="ann", on="g", action="start"))) == 1


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("session-secret", 0o644, "others may read or change it"),
        ("session-secret", 0o660, "others may read or change it"),
        (".", 0o777, "others may change it"),
    ],
)
def test_what_others_can_read_or_change_is_not_used(tmp_path: Path, name: str, mode: int, said: str) -> None:
    with served(tmp_path / "data"):
        pass
    (tmp_path / "data" / name).chmod(mode)
    with pytest.raises(InputError, match=said), served(tmp_path / "data"):
        pass


@requires_root
def test_a_strangers_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("heartbeat_s: 2\n")
    read_settings(tmp_path / "config.yaml")
    os.chown(tmp_path / "config.yaml", 4711, 4711)
    with pytest.raises(InputError, match="belongs to user 4711"):
        read_settings(tmp_path / "config.yaml")


def test_a_login_is_remembered_by_its_address(server: Served) -> None:
    login = server.client().post("/api/v1/login", json={"name": "op", "password": PASSWORD})
    assert login.status_code == 200
    assert list(server.parts.throttle._known) == [("127.0.0.1", "op")]


def test_a_join_token_brings_in_so_many_nodes_and_no_more(tmp_path: Path) -> None:
    with served(tmp_path, nodes_limit=5, new_nodes_per_minute=7) as server:
        client = server.client(TOKEN)
        large = {"command": ["x" * 4_000] * 200, "allowed": ["y" * 4_000] * 60}
        assert client.post("/api/v1/agent/join", json={**JOIN, **large}).status_code == 413
        named = [{**JOIN, "node": f"gn{n}", "instance": f"instance-{n}", "workers": 64} for n in range(9)]
        codes = [client.post("/api/v1/agent/join", json=join).status_code for join in named]
        assert codes == [200] * 5 + [409] * 2 + [429] * 2
        known = client.post("/api/v1/agent/join", json={**named[0], "workers": 63})
        assert known.status_code == 409, "it is alive; a name that is known counts as no new one"
        people = server.person("viewer")
        shown = people.get("/api/v1/workers", params={"limit": 100}).json()
        assert [one["worker"] for one in shown[:2]] == ["gn0-0", "gn0-1"]
        seen = len(shown)
        while shown:
            shown = people.get("/api/v1/workers", params={"limit": 100, "after": shown[-1]["worker"]}).json()
            assert len(shown) <= 100
            seen += len(shown)
        assert seen == 5 * 64
        nodes = people.get("/api/v1/nodes", params={"limit": 2, "after": "gn2"}).json()
        assert [one["node"] for one in nodes] == ["gn3", "gn4"]
        assert people.get("/api/v1/workers", params={"limit": 1_001}).status_code == 422


def test_what_a_node_says_once_is_not_repeated_for_each_of_its_workers(server: Served) -> None:
    join = {**JOIN, "node": "wide", "workers": 64, "allowed": ["z" * 4_000] * 7}
    assert server.client(TOKEN).post("/api/v1/agent/join", json=join).status_code == 200
    people = server.person("viewer")
    assert people.get("/api/v1/nodes/wide").json()["limited_to"] == join["allowed"]
    assert people.get("/api/v1/workers/wide-0").json()["limited"]
    for path in ("/api/v1/workers", "/", "/fragments/workers?text=wide"):
        assert len(people.get(path).content) < 300_000


def test_the_join_token_is_not_left_where_a_job_can_read_it() -> None:
    """It would be in /proc/PID/environ of the agent, whose jobs run as the same user."""
    code = (
        "import ctypes\n"
        "from pathlib import Path\n"
        "from platform_launch.environment import Environment, hide_from_neighbours\n"
        "hide_from_neighbours('PROCGUARD_JOIN_TOKEN', 'NOT_SET')\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "print('PROCGUARD_JOIN_TOKEN' in Environment.of_this_process())\n"
        "print(b'a-secret-token' in Path('/proc/self/environ').read_bytes())\n"
    )
    variables = {**os.environ, "PROCGUARD_JOIN_TOKEN": "a-secret-token", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["0", "False", "False"]


def test_no_redirect_leads_to_what_the_host_header_says(server: Served) -> None:
    for path in ("/events/", "/nodes/", "/api/v1/groups/", "/login/"):
        answer = server.person().get(path, headers={"Host": "evil.example"}, follow_redirects=False)
        assert "evil.example" not in answer.headers.get("location", "")
        assert answer.status_code == 404
