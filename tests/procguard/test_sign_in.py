"""Sign-in through an OpenID Connect provider and through a proxy, with roles from groups."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import ValidationError
from werkzeug.serving import make_server

from platform_launch.procguard.server.settings import ServerSettings
from tests.procguard.serving import PASSWORD, Served, served

ROLES = {"admin": ["lab-admins"], "operator": ["research", "lab-admins"], "viewer": ["*"]}
CLIENT_SECRET = "what only the provider and the server know"


@contextmanager
def provider(people: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Run an OpenID Connect provider that knows these people; yields its issuer."""
    with warnings.catch_warnings():  # it uses a module of Authlib that will be another package
        import authlib.deprecate  # which puts a filter of its own before all others

        warnings.simplefilter("ignore", authlib.deprecate.AuthlibDeprecationWarning)
        import oidc_provider_mock

        users = [oidc_provider_mock.User(sub=one["sub"], claims=one) for one in people]
        app = oidc_provider_mock.app(require_nonce=True, user_claims=users)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def served_with(
    tmp_path: Path, issuer: str, roles: dict[str, list[str]] = ROLES, **claims: str
) -> Iterator[Served]:
    secret = tmp_path / "client-secret"
    secret.write_text(CLIENT_SECRET)
    secret.chmod(0o600)
    oidc = {"issuer": issuer, "client_id": "procguard", "client_secret_file": secret, **claims}
    with served(tmp_path / "data", sign_in={"oidc": oidc, "roles": roles}) as server:
        yield server


def at_provider(server: Served, sub: str, place: str = "/") -> tuple[httpx.Client, str]:
    """Log in at the provider; return the browser and the address that the provider sends it back to."""
    browser = server.client()
    there = browser.get("/oidc/login", params={"next": place})
    assert there.status_code == 302, there.text
    back = browser.post(there.headers["Location"], data={"sub": sub})
    assert back.status_code == 302, back.text
    return browser, back.headers["Location"]


def signed_in(server: Served, sub: str, place: str = "/") -> tuple[httpx.Client, httpx.Response]:
    """Log in at the provider and come back."""
    browser, address = at_provider(server, sub, place)
    return browser, browser.get(address)


ANN: dict[str, Any] = {"sub": "1001", "preferred_username": "ann", "groups": ["research"]}
BOB: dict[str, Any] = {"sub": "1002", "preferred_username": "bob", "groups": ["sales", "lab-admins"]}
EVE: dict[str, Any] = {"sub": "1003", "preferred_username": "eve", "groups": []}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings.filterwarnings("ignore", module="authlib")


def test_a_group_at_the_provider_is_a_role_here(tmp_path: Path) -> None:
    with provider([ANN, BOB, EVE]) as issuer, served_with(tmp_path, issuer) as server:
        assert "/oidc/login?next=" in server.client().get("/login").text
        for person, role in ((ANN, "operator"), (BOB, "admin"), (EVE, "viewer")):
            browser, answer = signed_in(server, person["sub"], "/nodes")
            assert (answer.status_code, answer.headers["Location"]) == (303, "/nodes")
            assert browser.get("/api/v1/me").json() == {"name": person["preferred_username"], "role": role}
            assert browser.get("/nodes").status_code == 200
        account = browser.get("/account").text
        assert "password-title" not in account, "there is no password to change"
        assert "notices-title" not in account, "a viewer starts nothing"
        csrf = {"X-CSRF-Token": browser.cookies["procguard_csrf"]}
        refused = browser.put("/api/v1/me/notices", json={"address": ""}, headers=csrf)
        assert refused.status_code == 403
        for password in ("", "!", "nobody's password"):
            tried = server.client().post("/api/v1/login", json={"name": "ann", "password": password or "x"})
            assert tried.status_code == 401, "no password is that of such a user"
        admin, _ = signed_in(server, BOB["sub"])
        csrf = {"X-CSRF-Token": admin.cookies["procguard_csrf"]}
        assert admin.put("/api/v1/users/ann", json={"role": "viewer"}, headers=csrf).status_code == 409
        listed = {one["name"]: one["external"] for one in admin.get("/api/v1/users").json()}
        assert listed == {"ann": True, "bob": True, "eve": True, "op": False, "viewer": False}
        assert "single sign-on" in admin.get("/users").text


def test_another_group_is_another_role_at_the_next_sign_in(tmp_path: Path) -> None:
    with provider([ANN]) as issuer:
        with served_with(tmp_path, issuer) as server:
            before, _ = signed_in(server, ANN["sub"])
            assert before.get("/api/v1/me").json()["role"] == "operator"
        with served_with(tmp_path, issuer, {"viewer": ["research"]}) as server:
            now, _ = signed_in(server, ANN["sub"])
            assert now.get("/api/v1/me").json()["role"] == "viewer"
            events = server.person().get("/api/v1/events", params={"on": "ann"}).json()
        assert [(one["who"], one["action"]) for one in events] == [
            ("sign-in", "user-role"),
            ("sign-in", "user-added"),
        ]


@pytest.mark.parametrize(
    ("person", "problem"),
    [
        ({**ANN, "groups": ["sales"]}, "sign-in-no-role"),
        ({**ANN, "groups": {"research": True}}, "sign-in-no-role"),
        ({**ANN, "preferred_username": "op"}, "name-of-another"),
        ({**ANN, "preferred_username": "../op"}, "sign-in-name"),
        ({"sub": "1001", "groups": ["research"]}, "sign-in-name"),
    ],
)
def test_who_may_not_log_in_is_told_why(tmp_path: Path, person: dict[str, Any], problem: str) -> None:
    roles = {"operator": ["research"]}
    with provider([person]) as issuer, served_with(tmp_path, issuer, roles) as server:
        browser, answer = signed_in(server, person["sub"])
        assert answer.headers["Location"] == f"/login?problem={problem}"
        assert browser.get("/api/v1/me").status_code == 401
        page = browser.get(answer.headers["Location"]).text
        assert '<p class="refusal" role="alert">' in page
        chinese = browser.get(answer.headers["Location"], headers={"Accept-Language": "zh"}).text
        assert chinese.partition('role="alert">')[2][:10] not in page


def test_a_name_that_is_given_to_somebody_else_is_not_the_same_user(tmp_path: Path) -> None:
    with provider([ANN, {**ANN, "sub": "2001"}]) as issuer, served_with(tmp_path, issuer) as server:
        assert signed_in(server, ANN["sub"])[1].headers["Location"] == "/"
        _, answer = signed_in(server, "2001")
        assert answer.headers["Location"] == "/login?problem=name-of-another"


def test_an_answer_that_this_browser_did_not_ask_for_is_refused(tmp_path: Path) -> None:
    with provider([ANN]) as issuer, served_with(tmp_path, issuer) as server:
        browser, address = at_provider(server, ANN["sub"])
        victim = server.client()
        assert victim.get(address).headers["Location"] == "/login?problem=sign-in-failed"
        assert victim.get("/api/v1/me").status_code == 401
        query = parse_qs(urlsplit(address).query)
        wrong = browser.get("/oidc/callback", params={"code": "made up", "state": query["state"][0]})
        assert wrong.headers["Location"] == "/login?problem=sign-in-failed"
        again = browser.get(address)
        assert again.headers["Location"] == "/login?problem=sign-in-failed", "a state is used once"
        denied = browser.get("/oidc/callback", params={"error": "access_denied"})
        assert denied.headers["Location"] == "/login?problem=sign-in-failed"
        assert signed_in(server, ANN["sub"], "//evil.example/")[1].headers["Location"] == "/"


def test_a_provider_that_is_away_is_named_and_passwords_still_work(tmp_path: Path) -> None:
    with served_with(tmp_path, "http://127.0.0.1:9") as server:
        away = server.client().get("/oidc/login")
        assert away.headers["Location"] == "/login?problem=sign-in-unreachable"
        login = server.client().post("/api/v1/login", json={"name": "op", "password": PASSWORD})
        assert login.status_code == 200


def by_proxy(server: Served, name: str, groups: str) -> httpx.Client:
    client = server.client()
    client.headers.update(
        {"X-Forwarded-User": name, "X-Forwarded-Groups": groups, "X-Forwarded-For": "192.0.2.7"}
    )
    return client


def test_a_trusted_proxy_names_the_user(tmp_path: Path) -> None:
    sign_in = {"proxy": {}, "roles": {**ROLES, "viewer": ["staff"]}}
    with served(tmp_path, sign_in=sign_in, trusted_proxies=["127.0.0.0/8"]) as server:
        ann, staff = by_proxy(server, "ann", "sales, research"), by_proxy(server, "sam", "staff")
        assert ann.get("/api/v1/me").json() == {"name": "ann", "role": "operator"}
        assert staff.get("/api/v1/me").json() == {"name": "sam", "role": "viewer"}
        page = ann.get("/").text
        assert "/api/v1/logout" not in page, "the session is the proxy's"
        assert ann.post("/api/v1/groups", json={"name": "x"}).status_code == 403, "no page's CSRF token"
        token = page.partition('"X-CSRF-Token": "')[2].partition('"')[0]
        made = ann.post("/api/v1/groups", json={"name": "x"}, headers={"X-CSRF-Token": token})
        assert made.json()["settings"]["owners"] == ["ann"]
        long = {"workers": [f"node-{number}-0" for number in range(3000)], "group": "x"}
        assert ann.post("/api/v1/move", json=long, headers={"X-CSRF-Token": token}).status_code == 404
        none = by_proxy(server, "joe", "sales")
        assert none.get("/api/v1/me").status_code == 403
        assert "in no group" in none.get("/").text
        assert by_proxy(server, "op", "research").get("/api/v1/me").status_code == 409, "a user of ours"
        twice = httpx.get(
            f"{server.url}/api/v1/me",
            headers=[("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")],
            trust_env=False,
        )
        assert twice.status_code == 403, "which of them came from the proxy?"
        assert server.client().get("/api/v1/me").status_code == 401


def test_nobody_else_names_a_user(tmp_path: Path) -> None:
    sign_in = {"proxy": {}, "roles": {"admin": ["*"]}}
    with served(tmp_path, sign_in=sign_in, trusted_proxies=["192.0.2.7"]) as server:
        assert by_proxy(server, "ann", "research").get("/api/v1/me").status_code == 401


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sign_in": {"proxy": {}, "roles": {"viewer": ["*"]}}}, "trusted_proxies"),
        ({"sign_in": {"proxy": {}}, "trusted_proxies": ["127.0.0.1"]}, "sign_in.roles"),
        ({"sign_in": {"roles": {"boss": ["*"]}}}, "'viewer', 'operator' or 'admin'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        ServerSettings.model_validate(settings)
