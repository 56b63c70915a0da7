"""Users, their own passwords and tokens, and groups that are limited to some of them: over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from platform_launch.procguard.api.refused import NotFound, RequestRefused
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.database.users import MOST_TOKENS, ApiToken
from platform_launch.procguard.server.gate import SESSION_COOKIE
from tests.lab.waiting import until
from tests.procguard.serving import PASSWORD, FakeAgent, Served, hashed_password, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("people") / "data") as found:
        for name, role in (("ada", UserRole.ADMIN), ("other", UserRole.OPERATOR)):
            found.parts.accounts.add(name, role, hashed_password())
        yield found


def test_an_admin_says_who_logs_in_and_nobody_else_does(server: Served) -> None:
    ada, op = server.person("ada"), server.person("op")
    new = {"name": "new.one", "role": "viewer", "password": "long enough"}
    assert op.post("/api/v1/users", json=new).status_code == 403
    assert op.get("/api/v1/users").status_code == 403
    assert ada.post("/api/v1/users", json=new | {"password": "short"}).status_code == 422
    assert ada.post("/api/v1/users", json=new).status_code == 201
    assert ada.post("/api/v1/users", json=new).status_code == 409
    theirs = server.person("new.one")
    assert theirs.get("/api/v1/me").json() == {"name": "new.one", "role": "viewer"}
    assert ada.put("/api/v1/users/new.one", json={"role": "operator"}).status_code == 204
    assert theirs.get("/api/v1/me").status_code == 401, "another role ends sessions"
    assert ada.put("/api/v1/users/ada", json={"role": "viewer"}).status_code == 409, "not one's own"
    assert ada.delete("/api/v1/users/new.one").status_code == 204
    assert "new.one" not in [one["name"] for one in ada.get("/api/v1/users").json()]
    told = ada.get("/api/v1/events", params={"on": "new.one"}).json()
    assert [(one["who"], one["action"]) for one in told] == [
        ("ada", "user-removed"),
        ("ada", "user-role"),
        ("ada", "user-added"),
    ]


def test_ones_own_password_ends_the_other_sessions_only(server: Served) -> None:
    server.parts.accounts.add("pat", UserRole.VIEWER, hashed_password())
    elsewhere, here = server.person("pat"), server.client()
    login = here.post("/api/v1/login", json={"name": "pat", "password": PASSWORD})
    csrf = {"X-CSRF-Token": here.cookies["procguard_csrf"]}
    assert login.status_code == 200
    wrong = here.put("/api/v1/me/password", json={"current": "not it", "new": "another one"}, headers=csrf)
    assert wrong.status_code == 403
    change = {"current": PASSWORD, "new": "another one"}
    assert here.put("/api/v1/me/password", json=change).status_code == 403, "a page must show its CSRF token"
    assert here.put("/api/v1/me/password", json=change, headers=csrf).status_code == 204
    assert here.get("/api/v1/me").status_code == 200
    assert elsewhere.get("/api/v1/me").status_code == 401


def test_a_token_may_what_both_it_and_its_user_may_until_it_ends(server: Served) -> None:
    other = server.person("other")
    made = other.post("/api/v1/me/tokens", json={"label": "nightly", "role": "viewer", "days": 2}).json()
    script = server.client(made["token"])
    assert script.get("/api/v1/me").json() == {"name": "other", "role": "viewer"}
    assert script.post("/api/v1/groups", json={"name": "x"}).status_code == 403
    assert script.post("/api/v1/me/tokens", json={"label": "more"}).status_code == 403, "none from one"
    assert script.put("/api/v1/me/password", json={"current": PASSWORD, "new": "1" * 9}).status_code == 403
    assert script.post("/api/v1/logout").status_code == 403, "it would go on all the same"
    assert "token" not in other.get("/api/v1/me/tokens").json()[0], "told once"
    above = other.post("/api/v1/me/tokens", json={"label": "greedy", "role": "admin"}).json()
    assert server.client(above["token"]).get("/api/v1/users").status_code == 403
    # Not the last letter, a part of which is padding: four of them say the same.
    start, letter, end = made["token"][:-9], made["token"][-9], made["token"][-8:]
    forged = f"{start}{'a' if letter != 'a' else 'b'}{end}"
    assert server.client(forged).get("/api/v1/me").status_code == 401
    cookie = server.client()
    cookie.cookies.set(SESSION_COOKIE, made["token"])
    assert cookie.get("/api/v1/me").status_code == 401, "no browser sends it by itself"
    assert other.delete(f"/api/v1/me/tokens/{made['id']}").status_code == 204
    assert script.get("/api/v1/me").status_code == 401

    now = datetime.now(timezone.utc)
    ended = ApiToken("feed" * 6, "other", "old", UserRole.VIEWER, now - timedelta(9), now - timedelta(1))
    server.parts.accounts.add_token(ended)
    assert server.client(server.parts.sessions.token(ended.id)).get("/api/v1/me").status_code == 401


def test_tokens_that_are_made_at_once_are_counted_one_after_the_other(server: Served) -> None:
    accounts, now = server.parts.accounts, datetime.now(timezone.utc)
    accounts.add("many", UserRole.VIEWER, hashed_password())

    def make(number: int) -> bool:
        with suppress(RequestRefused):
            role, ends = UserRole.VIEWER, now + timedelta(1)
            accounts.add_token(ApiToken(f"many{number}", "many", "one", role, now, ends))
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(MOST_TOKENS + 20))) == MOST_TOKENS
    assert len(accounts.tokens("many")) == MOST_TOKENS
    with pytest.raises(NotFound, match="no user nobody"):
        accounts.add_token(ApiToken("none", "nobody", "one", UserRole.VIEWER, now, now))


def test_a_group_with_owners_is_changed_by_them_and_by_admins_only(server: Served) -> None:
    FakeAgent(server, "own1")
    op, other, ada = server.person("op"), server.person("other"), server.person("ada")
    assert op.post("/api/v1/groups", json={"name": "owned"}).status_code == 201
    assert op.post("/api/v1/move", json={"workers": ["own1-0"], "group": "owned"}).status_code == 204
    settings = op.get("/api/v1/groups/owned").json()["settings"]
    lock_out = op.put("/api/v1/groups/owned/settings", json=settings | {"owners": ["other"]})
    assert lock_out.status_code == 403, "nobody gives a group away by a slip"
    limited = op.put("/api/v1/groups/owned/settings", json=settings | {"owners": ["op"]})
    assert limited.status_code == 200, limited.text
    refused = [
        other.post("/api/v1/groups/owned/start"),
        other.post("/api/v1/groups/owned/stop"),
        other.post("/api/v1/groups/owned/restart"),
        other.put("/api/v1/groups/owned/settings", json=settings),
        other.delete("/api/v1/groups/owned"),
        other.post("/api/v1/move", json={"workers": ["own1-0"], "group": None}),
    ]
    assert [one.status_code for one in refused] == [403] * len(refused)
    assert "only op may change" in refused[0].json()["error"]
    assert other.get("/api/v1/groups/owned").status_code == 200, "looking is everybody's"
    assert ada.put("/api/v1/groups/owned/settings", json=settings | {"owners": ["other"]}).status_code == 200
    assert other.delete("/api/v1/groups/owned").status_code == 204


def test_the_pages_of_users_and_of_ones_own(server: Served) -> None:
    pages = [
        server.person(who).get(path).status_code for who in ("ada", "op") for path in ("/users", "/account")
    ]
    assert pages == [200, 200, 404, 200]


def test_a_merged_log_over_http(server: Served) -> None:
    agent, op = FakeAgent(server, "log1", 2), server.person("op")
    settings = {"master_addr": "log1", "command": "x"}
    assert op.post("/api/v1/groups", json={"name": "logged", "settings": settings}).status_code == 201
    move = {"workers": ["log1-0", "log1-1"], "group": "logged"}
    assert op.post("/api/v1/move", json=move).status_code == 204
    assert op.get("/api/v1/groups/logged/log").status_code == 404, "it has not run"
    assert op.post("/api/v1/groups/logged/start").status_code == 200
    agent.beat()
    for number in (0, 1):
        query = f"number={number}&generation=1&offset=0"
        sent = agent.http.post(f"/api/v1/agent/log?{query}", content=b"begin\nValueError: %d\n" % number)
        assert sent.status_code == 200
    assert op.post("/api/v1/groups/logged/stop").status_code == 200
    until(lambda: agent.beat() and op.get("/api/v1/groups/logged").json()["phase"] == "stopped")
    found = op.get("/api/v1/groups/logged/log", params={"after": "", "errors": "true", "ranks": "1"}).json()
    assert [(line["rank"], line["text"]) for line in found["lines"]] == [(1, "ValueError: 1")]
    assert found["ended"]
    around = op.get("/api/v1/groups/logged/log", params={"rank": 0, "line": 2}).json()
    assert around["target"] in [line["place"] for line in around["lines"]]
    bad = op.get("/api/v1/groups/logged/log", params={"after": "", "search": "(", "expression": "true"})
    assert bad.status_code == 422
