"""Who is told of groups: webhooks, alerts, a board."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from platform_launch.errors import InputError
from platform_launch.procguard.api.shapes.events import AuditEvent
from platform_launch.procguard.server import webhooks as webhooks_module
from platform_launch.procguard.server.settings import Webhook, read_settings
from platform_launch.procguard.server.webhook_forms import Notice, body, refusal
from platform_launch.procguard.server.webhooks import Webhooks
from tests.lab.waiting import LIMIT_S, until
from tests.procguard.serving import FakeAgent, served

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a port of this machine, and give the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


@contextmanager
def receiver(
    answers: list[int], words: bytes = b"", heard: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Take messages; each is answered with the next status, then with 200, and with ``words``.

    These are packed for whoever takes them so, as many servers do it.
    """
    taken: list[dict[str, Any]] = []

    class Handler(Quiet):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = answers.pop(0) if answers else 200
            if status == 200:
                taken.append(message)
            heard()
            self.send_response(status)
            packed = "gzip" in self.headers["Accept-Encoding"]
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(gzip.compress(words) if packed else words)

    with serving(Handler) as url:
        yield f"{url}secret-path", taken


def test_a_group_that_failed_is_told_also_when_the_receiver_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks_module, "_FIRST_PAUSE_S", 0.05)
    with receiver([503, 500]) as (url, taken):
        hook = Webhook(url=url)
        with served(tmp_path, webhooks=(hook,), page_url="https://pg.example") as server:
            agent, people = FakeAgent(server, "gn6"), server.person()
            settings = {"master_addr": "gn6", "command": "train --token hf_secret", "environment": {}}
            people.post("/api/v1/groups", json={"name": "g", "settings": settings})
            people.post("/api/v1/move", json={"workers": ["gn6-0"], "group": "g"})
            assert people.post("/api/v1/groups/g/start").status_code == 200

            def running() -> bool:
                agent.beat()
                return str(agent.reports[0]["state"]) == "running"

            until(running)
            agent.beat()
            agent.end(0, 3)

            def failed() -> bool:
                agent.beat()
                return str(people.get("/api/v1/groups/g").json()["phase"]) == "failed"

            until(failed)
            until(lambda: {message["event"] for message in taken} == {"failing", "failed"})
        told = next(message for message in taken if message["event"] == "failed")
        assert (told["group"], told["url"]) == ("g", "https://pg.example/groups/g")
        assert "gn6-0: ended with exit code 3" in told["text"]
        assert "hf_secret" not in json.dumps(taken)


def test_each_receiver_gets_its_own_form() -> None:
    notice = Notice("g", "failed", "run 1", "2026-01-01", "")
    line = "ProcGuard: g failed: run 1"
    assert body("slack", notice) == {"text": line}
    assert body("feishu", notice) == {"msg_type": "text", "content": {"text": line}}
    assert body("dingtalk", notice) == body("wecom", notice) == {"msgtype": "text", "text": {"content": line}}


def test_what_waits_for_a_busy_receiver_is_told_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks_module, "_FIRST_PAUSE_S", 0.01)
    registry = CollectorRegistry()
    counted = Counter("messages", "-", ["result"], registry=registry)
    with receiver([503] * 4) as (busy, late), receiver([]) as (url, at_once):
        webhooks = Webhooks((Webhook(url=busy), Webhook(url=url)), "", counted)
        webhooks.start()
        for number, action in enumerate(("failed", "finished", "failed")):
            webhooks.receive(
                AuditEvent(id=number, at=NOW, who="server", action=action, object="g", detail="")
            )
        until(lambda: len(late) == len(at_once) == 3)
        webhooks.stop()
    assert [message["event"] for message in late] == ["failed", "finished", "failed"]
    assert registry.get_sample_value("messages_total", {"result": "sent"}) == 6


def told_of(webhooks: Webhooks, *groups: str) -> None:
    for number, group in enumerate(groups):
        webhooks.receive(
            AuditEvent(id=number, at=NOW, who="server", action="failed", object=group, detail="")
        )


@pytest.fixture
def results() -> Counter:
    return Counter("messages", "-", ["result"], registry=None)


def count(results: Counter, result: str) -> float:
    (metric,) = results.labels(result).collect()
    return sum(one.value for one in metric.samples if one.name.endswith("_total"))


def test_a_receiver_that_answers_nonsense_keeps_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch, results: Counter
) -> None:
    monkeypatch.setattr(webhooks_module, "_FIRST_PAUSE_S", 0.01)
    nonsense, deep = b"[" * 200_000, b'{"errcode": 1, "errmsg": ' + b"[" * 900 + b"]" * 900 + b"}"
    with receiver([], nonsense) as (bad, _), receiver([], deep) as (worse, _), receiver([]) as (url, taken):
        hooks = (Webhook(url=bad, kind="wecom"), Webhook(url=worse, kind="wecom"), Webhook(url=url))
        webhooks = Webhooks(hooks, "", results)
        webhooks.start()
        told_of(webhooks, "g", "h")
        until(lambda: len(taken) == 2 and count(results, "lost") == 4)
        webhooks.stop()
    assert count(results, "sent") == 2


def test_an_answer_is_understood_also_where_a_receiver_packs_what_it_may(
    monkeypatch: pytest.MonkeyPatch, results: Counter
) -> None:
    monkeypatch.setattr(webhooks_module, "_TRIES", 1)
    with receiver([], b'{"errcode": 0, "errmsg": "ok"}') as (url, taken):
        webhooks = Webhooks((Webhook(url=url, kind="dingtalk"),), "", results)
        webhooks.start()
        told_of(webhooks, "g")
        until(lambda: count(results, "sent") + count(results, "lost") == 1)
        webhooks.stop()
    assert (len(taken), count(results, "sent")) == (1, 1)


@contextmanager
def endless(part: bytes, pause_s: float) -> Iterator[tuple[str, list[str]]]:
    """Take messages, and answer each with a part again and again until the sender hangs up."""
    heard: list[str] = []
    leaving = threading.Event()

    class Endless(Quiet):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not leaving.wait(pause_s):
                    self.wfile.write(part)

    with serving(Endless) as url:
        try:
            yield url, heard
        finally:
            leaving.set()


@pytest.mark.parametrize(("part", "pause_s"), [(b"{" * 65_536, 0.0), (b" ", 0.05)])
def test_a_receiver_whose_answer_never_ends_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, results: Counter, part: bytes, pause_s: float
) -> None:
    monkeypatch.setattr(webhooks_module, "_TRIES", 1)
    if pause_s:
        monkeypatch.setattr(webhooks_module, "_LIMIT_S", 0.5)
    with endless(part, pause_s) as (url, _), endless(part, pause_s) as (other, taken):
        hooks = (Webhook(url=url, kind="wecom", events=("failed",)), Webhook(url=other, events=("finished",)))
        webhooks = Webhooks(hooks, "", results)
        webhooks.start()
        told_of(webhooks, "g")
        until(lambda: count(results, "lost") == 1)
        monkeypatch.setattr(webhooks_module, "_LIMIT_S", LIMIT_S)
        # What this one says is not waited for: its status tells.
        webhooks.receive(AuditEvent(id=9, at=NOW, who="server", action="finished", object="g", detail=""))
        until(lambda: count(results, "sent") == 1)
        webhooks.stop()
    assert taken == ["/"]


def test_what_finds_no_room_to_wait_is_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, results: Counter
) -> None:
    monkeypatch.setattr(webhooks_module, "_MOST_WAITING", 3)
    with receiver([]) as (url, taken):
        webhooks = Webhooks((Webhook(url=url),), "", results)
        told_of(webhooks, "a", "b", "c", "d", "e")
        assert count(results, "lost") == 2
        webhooks.start()
        until(lambda: count(results, "sent") == 3)
        webhooks.stop()
    assert [message["group"] for message in taken] == ["c", "d", "e"]
    logged = [record.args for record in caplog.records if record.name == webhooks_module.__name__]
    assert [values[1] for values in logged if isinstance(values, tuple)] == ["a", "b"]
    assert "secret-path" not in caplog.text


def test_a_message_that_gives_way_leaves_its_tries_to_nobody(
    monkeypatch: pytest.MonkeyPatch, results: Counter
) -> None:
    monkeypatch.setattr(webhooks_module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(webhooks_module, "_MOST_WAITING", 1)
    heard: list[str] = []

    def first_gives_way() -> None:
        heard.append("")
        if len(heard) == 4:
            told_of(webhooks, "second")

    # Four tries of the first, four of the second, which is taken at its fifth.
    with receiver([503] * 8, heard=first_gives_way) as (url, taken):
        webhooks = Webhooks((Webhook(url=url),), "", results)
        webhooks.start()
        told_of(webhooks, "first")
        until(lambda: count(results, "lost") + count(results, "sent") == 2)
        webhooks.stop()
    assert (len(heard), [message["group"] for message in taken]) == (9, ["second"])
    assert (count(results, "lost"), count(results, "sent")) == (1, 1)


def test_nobody_is_called_by_what_a_detail_holds() -> None:
    notice = Notice("g", "failed", '<!channel> <at user_id="all">all</at> a < b', "", "https://pg.example")
    assert "<" not in body("slack", notice)["text"]
    assert "&lt;!channel&gt;" in body("slack", notice)["text"]
    told = body("feishu", notice)["content"]["text"]
    assert not re.search("</?at", told)
    assert told.endswith(" a < b https://pg.example")


def test_what_is_long_is_cut_to_what_every_receiver_takes() -> None:
    notice = Notice("g", "failed", "\u574f" * 1000, "", f"https://pg.example/{'x' * 400}")
    told = body("wecom", notice)["text"]["content"]
    assert len(told.encode()) <= 2048
    assert told.endswith(notice.url)


@pytest.mark.parametrize(
    ("kind", "status", "content", "told"),
    [
        ("slack", 200, "ok", ""),
        ("json", 204, "", ""),
        ("json", 200, '{"code": 1}', ""),  # a receiver of one's own says what it likes
        ("slack", 404, "no_service", "HTTP 404"),
        ("feishu", 200, '{"StatusCode": 0, "code": 0, "msg": "success"}', ""),
        (
            "feishu",
            200,
            '{"code": 19024, "msg": "Key Words Not Found"}',
            "code='19024': 'Key Words Not Found'",
        ),
        ("dingtalk", 200, '{"errcode": 0, "errmsg": "ok"}', ""),
        ("dingtalk", 200, '{"errcode": 310000, "errmsg": "no keyword"}', "errcode='310000': 'no keyword'"),
        ("wecom", 200, '{"errcode": 45009, "errmsg": "freq"}', "errcode='45009': 'freq'"),
        ("wecom", 200, "<html>log in</html>", "its answer is not JSON"),
        ("wecom", 200, "[" * 200_000, "its answer is not JSON"),
    ],
)
def test_a_refusal_with_http_200_is_one(kind: str, status: int, content: str, told: str) -> None:
    assert refusal(kind, status, content.encode()) == told


@pytest.mark.parametrize(
    "hooks", ["[{url: hooks.example/t0ps3cret, kind: slack}]", "[hooks.example/t0ps3cret]", "x/t0ps3cret"]
)
def test_a_webhook_that_is_none_is_refused_without_its_address(tmp_path: Path, hooks: str) -> None:
    config = tmp_path / "procguard.yaml"
    config.write_text(f"webhooks: {hooks}\n")
    with pytest.raises(InputError, match="webhooks") as refused:
        read_settings(config)
    assert "t0ps3cret" not in str(refused.value)


def test_alerts_and_board_ask_for_what_the_server_measures(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        FakeAgent(server, "gn6").beat()
        text = server.client().get("/metrics").text
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    measured = {sample.name for sample in samples} | {family.name for family in families}
    labels = {(sample.name, *label) for sample in samples for label in sample.labels.items()}
    alerts = yaml.safe_load((ROOT / "configs/procguard-alerts.yaml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in rules)
    board = json.loads((ROOT / "configs/procguard-grafana.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in panels for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"procguard_\w+", expression)}
    assert names - measured == set()
    chosen = {found for text in asked for found in re.findall(r'(procguard_\w+)\{(\w+)="(\w+)"\}', text)}
    assert chosen
    assert chosen - labels == set()
