"""Who may do what, over a real socket: every route, every way in, and what a browser is told."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from fastapi.routing import APIRoute
from itsdangerous import URLSafeTimedSerializer
from limits import RateLimitItemPerMinute
from starlette.routing import BaseRoute, Route

from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.server.app import build_app
from platform_launch.procguard.server.gate import CSRF_COOKIE, CSRF_HEADER, SESSION_COOKIE
from platform_launch.procguard.server.sessions import Sessions, hash_password
from platform_launch.procguard.server.throttle import BY_NAME, FROM_ALL, Throttle
from platform_launch.procguard.web import stream as stream_module
from tests.procguard.serving import PASSWORD, FakeAgent, Served, hashed_password, served

# Who may ask these is not a matter of logging in.
FOR_AGENTS = {f"/api/v1/agent/{what}" for what in ("join", "heartbeat", "log", "ranks")}
OPEN = {"/api/v1/login", *FOR_AGENTS}
OPEN_TO_READ = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/login"}
# They answer what would be, and change nothing, or only what is one's own: viewers may ask.
FOR_VIEWERS = {
    "/api/v1/groups/{name}/preview",
    "/fragments/groups/{name}/ranks",
    "/api/v1/logout",
    "/api/v1/me/password",
    "/api/v1/me/notices",
    "/api/v1/me/tokens",
    "/api/v1/me/tokens/{token}",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("security")) as found:
        yield found


def routes(server: Served) -> list[tuple[str, str]]:
    """Return method and path of each route of the app, pages included."""
    app = build_app(server.parts)

    def listed(found: list[BaseRoute]) -> Iterator[tuple[str, str]]:
        for route in found:
            if isinstance(route, (Route, APIRoute)):
                for method in sorted(route.methods or ()):
                    yield method, route.path
            elif (included := getattr(route, "original_router", None)) is not None:
                yield from listed(included.routes)

    return list(listed(app.routes))


def filled(path: str) -> str:
    return re.sub(r"\{\w+\}", "gn6-0", path)


def test_every_route_wants_a_login(server: Served) -> None:
    seen = routes(server)
    assert len(seen) > 30
    assert ("POST", "/api/v1/groups/{name}/start") in seen
    anybody = server.client()
    for method, path in seen:
        if path in OPEN or (method in ("GET", "HEAD") and path in OPEN_TO_READ):
            continue
        answer = anybody.request(method, filled(path))
        to_login = answer.status_code == 303 and answer.headers["location"].startswith("/login")
        assert answer.status_code == 401 or to_login, (method, path, answer.status_code)


def test_every_change_wants_an_operator_and_the_token_of_the_page(server: Served) -> None:
    viewer, operator = server.token("viewer"), server.token("op")
    changes = [(m, p) for m, p in routes(server) if m not in ("GET", "HEAD") and p not in OPEN]
    assert len(changes) >= 10
    for method, path in changes:
        if path not in FOR_VIEWERS:
            answer = server.client(viewer).request(method, filled(path), json={})
            assert answer.status_code in (403, 422), (method, path, answer.text)
            if answer.status_code == 422:  # the body is looked at first where there is one
                answer = server.client(viewer).request(method, filled(path), json=_body_of(path))
                assert answer.status_code == 403, (method, path, answer.text)
        if path.startswith("/api/"):
            with_cookie = server.client()
            with_cookie.cookies.set(SESSION_COOKIE, operator)
            for headers in (
                {},
                {CSRF_HEADER: ""},
                {CSRF_HEADER: "0" * 64},
                {CSRF_HEADER: "not hexadecimal"},
            ):
                answer = with_cookie.request(method, filled(path), json=_body_of(path), headers=headers)
                assert answer.status_code == 403, (method, path, answer.text)


def _body_of(path: str) -> dict[str, object]:
    if path.endswith("/move"):
        return {"workers": [], "group": None}
    if path.endswith("/notices"):
        return {"address": ""}
    if path == "/api/v1/users":
        return {"name": "x", "role": "viewer", "password": "of eight or more"}
    return {"name": "x"} if path == "/api/v1/groups" else {}


def test_a_browser_logs_in_changes_something_and_logs_out(server: Served) -> None:
    browser = server.client()
    origin = {"Origin": server.url}
    login = browser.post("/api/v1/login", json={"name": "op", "password": PASSWORD}, headers=origin)
    assert login.json()["role"] == "operator"
    given = {line.partition("=")[0]: line.lower() for line in login.headers.get_list("set-cookie")}
    assert "httponly" in given[SESSION_COOKIE]
    assert "samesite=lax" in given[SESSION_COOKIE]
    assert "httponly" not in given[CSRF_COOKIE]
    assert browser.get("/api/v1/me").json() == {"name": "op", "role": "operator"}

    token = {CSRF_HEADER: browser.cookies[CSRF_COOKIE]}
    made = browser.post("/api/v1/groups", json={"name": "browsed"}, headers=origin | token)
    assert made.status_code == 201
    path = "/api/v1/groups/browsed"
    for foreign in (
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://[x"},
        {"Origin": server.url.replace("127.0.0.1", "127.0.0.1.elsewhere.example")},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert browser.delete(path, headers=foreign | token).status_code == 403, foreign
    other = server.parts.sessions.csrf("another session")
    assert browser.delete(path, headers=origin | {CSRF_HEADER: other}).status_code == 403
    assert browser.delete(path, headers=origin | token).status_code == 204

    stolen = server.client(login.json()["token"])
    assert stolen.get("/api/v1/me").status_code == 200
    assert browser.post("/api/v1/logout", headers=origin | token).status_code == 204
    assert SESSION_COOKIE not in browser.cookies
    assert stolen.get("/api/v1/me").status_code == 401


def test_a_foreign_page_cannot_log_a_browser_in(server: Served) -> None:
    answer = server.client().post(
        "/api/v1/login",
        json={"name": "op", "password": PASSWORD},
        headers={"Origin": "https://elsewhere.example"},
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_sessions_end_with_what_they_were_given_for(server: Served) -> None:
    accounts = server.parts.accounts
    accounts.add("leaver", UserRole.OPERATOR, hashed_password())

    def alive(token: str) -> bool:
        return server.client(token).get("/api/v1/me").status_code == 200

    first = server.token("leaver")
    assert alive(first)
    accounts.set_password("leaver", hash_password("another password"))
    second = server.token("leaver")
    assert (alive(first), alive(second)) == (False, True)
    accounts.set_role("leaver", UserRole.VIEWER)
    third = server.token("leaver")
    assert (alive(second), alive(third)) == (False, True)
    accounts.remove("leaver")
    accounts.add("leaver", UserRole.OPERATOR, hashed_password())
    assert not alive(third)


def test_who_has_logged_out_is_told_nothing_more(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a stream that was opened before either."""
    monkeypatch.setattr(stream_module, "ADMIT_EVERY_S", 0.1)
    person = server.person()
    with person.stream("GET", "/stream") as stream:
        events = stream.iter_text()
        assert "alive" in next(events)
        assert person.post("/api/v1/logout").status_code == 204
        assert sum(1 for _ in events) < 60  # it ends, long before its time
    assert person.get("/stream").status_code == 401


def test_tokens_that_were_not_signed_here_are_nobodys(server: Served) -> None:
    good = server.token("op")
    account = server.parts.accounts.find("op")
    assert account is not None
    forged = URLSafeTimedSerializer("guessed", salt="procguard session").dumps(["op", account.epoch, "x"])
    payload, stamp, signature = good.split(".")
    changed = "A" if signature[3] != "A" else "B"
    tried = [
        forged,
        good[:-3],
        f"{payload}.{stamp}",
        f"{payload}.{stamp}.{signature[:3]}{changed}{signature[4:]}",
    ]
    tried += [f"A{payload[1:]}.{stamp}.{signature}", "a" * 5000, "..", "{}"]
    for token in tried:
        assert server.client(token).get("/api/v1/me").status_code == 401, token


def test_a_session_ends_with_its_time_and_stays_ended_after_a_restart(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        token = server.token("op")
        person = server.parts.sessions.who(token)
        assert person is not None
        kept = server.token("op")
        assert server.client(token).post("/api/v1/logout").status_code == 204
    assert (tmp_path / "ended-sessions").stat().st_mode & 0o777 == 0o600
    with served(tmp_path) as server:
        assert server.client(token).get("/api/v1/me").status_code == 401
        assert server.client(kept).get("/api/v1/me").status_code == 200
        secret = (tmp_path / "session-secret").read_text().strip()
        short = Sessions(secret, server.parts.accounts, tmp_path / "other", hours=0)
        account = server.parts.accounts.find("op")
        assert account is not None
        brief = short.begin(account)[0]
        time.sleep(1.1)  # tokens count whole seconds
        assert short.who(brief) is None


def test_wrong_passwords_and_names_look_the_same_and_are_limited(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        anybody = server.client()

        def tried(name: str, password: str) -> httpx.Response:
            return anybody.post("/api/v1/login", json={"name": name, "password": password})

        wrong, nobody = tried("op", "wrong"), tried("nobody", "wrong")
        assert (wrong.status_code, wrong.json()) == (nobody.status_code, nobody.json())
        assert wrong.status_code == 401
        statuses = [tried("op", f"guess {n}").status_code for n in range(BY_NAME.amount)]
        assert statuses[-1] == 429
        assert tried("op", PASSWORD).status_code == 429  # a right one is no way round
        assert tried("viewer", PASSWORD).status_code == 200
        metrics = anybody.get("/metrics").text
        assert 'procguard_logins_total{result="throttled"}' in metrics


def test_one_address_is_limited_over_all_names_and_an_ipv6_network_is_one() -> None:
    throttle = Throttle(by_address=RateLimitItemPerMinute(5))
    for n in range(5):
        throttle.count(f"2001:db8::{n}", f"name{n}")
    with pytest.raises(RequestRefused) as refused:
        throttle.count("2001:db8::ffff", "another")
    assert refused.value.status == 429
    throttle.count("2001:db8:0:1::1", "another")
    throttle.count("192.0.2.1", "another")
    for n in range(6):  # how a server that listens on both kinds sees IPv4 addresses: no network of one guest
        throttle.count(f"::ffff:198.51.100.{n}", f"guest{n}")


def test_no_guest_locks_somebody_else_out() -> None:
    throttle = Throttle()
    for _ in range(BY_NAME.amount):
        throttle.count("192.0.2.66", "admin")
    with pytest.raises(RequestRefused):
        throttle.count("192.0.2.66", "admin")
    for n in range(FROM_ALL.amount - BY_NAME.amount):
        throttle.count(f"198.51.100.{n}", "admin")
    with pytest.raises(RequestRefused):  # many guests together are one who guesses
        throttle.count("192.0.2.1", "admin")


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)])
def test_only_a_trusted_proxy_says_who_asks(tmp_path: Path, trusted: tuple[str, ...]) -> None:
    with served(tmp_path, trusted_proxies=trusted) as server:
        said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
        login = {"name": "op", "password": PASSWORD}
        answer = server.client().post("/api/v1/login", json=login, headers=said)
        assert answer.status_code == 200
        secure = ["secure" in cookie.lower() for cookie in answer.headers.get_list("set-cookie")]
        assert secure == [bool(trusted)] * 2


@pytest.mark.parametrize("where", ["workers/gn6-0", "groups/searched"])
def test_no_viewer_fills_or_stalls_the_server_by_an_expression(server: Served, where: str) -> None:
    """Compiled without limits, one of these took gigabytes, and every heartbeat waited for seconds."""
    agent, people = FakeAgent(server, "gn6"), server.person()
    people.post(
        "/api/v1/groups", json={"name": "searched", "settings": {"command": "x", "master_addr": "gn6"}}
    )
    people.post("/api/v1/move", json={"workers": ["gn6-0"], "group": "searched"})
    people.post("/api/v1/groups/searched/start")
    agent.beat()
    viewer, before = server.person("viewer"), psutil.Process().memory_info().rss
    for expression in ("(?:(?:x{1000}){1000}){5}", "(?:(?:x{1000}){1000}){20}", r"[\pL\pN]{1000}" * 12):
        asked = {"search": expression, "expression": "true", "after": ""}
        answer = viewer.get(f"/api/v1/{where}/log", params=asked)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad-pattern")
    assert psutil.Process().memory_info().rss - before < 64 * 2**20


def test_what_browsers_are_told(server: Served) -> None:
    anybody = server.client()
    for path in ("/login", "/healthz", "/api/v1/groups", "/nothing", "/static/nothing"):
        headers = anybody.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers
    assert anybody.get("/api/v1/groups").headers["cache-control"] == "no-store"
    page = anybody.get("/login").text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", page)


def test_who_asks_for_a_part_of_a_page_in_an_ended_session_is_led_to_the_login_and_back(
    server: Served,
) -> None:
    nobody, shown = server.client(), f"{server.url}/events?who=op&action=create"
    answer = nobody.get(shown, headers={"HX-Request": "true", "HX-Current-URL": shown})
    assert answer.status_code == 401
    login = nobody.get(answer.headers["HX-Redirect"]).text
    assert "Your session has ended" in login
    assert 'data-go="/events?who=op&amp;action=create"' in login
