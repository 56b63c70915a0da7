"""A database that the first version's server wrote (``first_version.sql``), taken over by this one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.procguard.serving import PASSWORD, FakeAgent, served

DUMP = Path(__file__).with_name("first_version.sql")


def test_groups_workers_users_and_what_runs_are_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with closing(sqlite3.connect(data / "procguard.db")) as database:
        database.executescript(DUMP.read_text("utf-8"))
    with served(data) as server:
        http = server.client()
        login = http.post("/api/v1/login", json={"name": "admin", "password": PASSWORD})
        assert (login.status_code, login.json()["role"]) == (200, "admin")
        people = server.client(login.json()["token"])
        roles = {one["name"]: one["role"] for one in people.get("/api/v1/users").json()}
        assert roles == {"admin": "admin", "vera": "viewer", "op": "operator", "viewer": "viewer"}
        groups = {group["name"]: group for group in people.get("/api/v1/groups").json()}
        train = groups["train"]
        assert (train["phase"], train["run_number"], train["generation"]) == ("running", 1, 1)
        assert train["workers"] == ["gn6-0", "gn6-1", "gn7-0"]
        assert train["settings"]["command"] == "python train.py --name 'a b'"
        assert (train["settings"]["owners"], train["settings"]["environment"]) == ([], {})
        assert groups["spare"]["phase"] == "idle"
        kept = {event["id"]: event for event in people.get("/api/v1/events").json()}
        told = {key: kept[3][key] for key in ("action", "object", "detail", "code", "values")}
        detail = "2 worker(s) on gn6.lan, any command"
        assert told == {"action": "joined", "object": "gn6", "detail": detail, "code": "", "values": {}}
        assert detail in people.get("/events", headers={"Accept-Language": "zh"}).text
        worker = people.get("/api/v1/workers/gn6-1").json()
        assert (worker["rank"], worker["group"], worker["status"]) == (1, "train", "unknown")
        assert FakeAgent(server, "gn8").beat()["0"]["action"] == "stop", "new nodes join"
        for path in ("/", "/groups/train", "/groups/train/runs", "/groups/train/log", "/nodes", "/users"):
            assert people.get(path).status_code == 200, path
