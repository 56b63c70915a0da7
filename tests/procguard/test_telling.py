"""Who is told of groups: notices through Apprise, alerts, a board."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from platform_launch.errors import InputError
from platform_launch.procguard.api.shapes.history import AuditEvent
from platform_launch.procguard.server import notices as notices_module
from platform_launch.procguard.server.notices import Notice, Notices
from platform_launch.procguard.server.settings import NoticeReceiver, read_settings
from tests.lab.waiting import until
from tests.procguard.serving import FakeAgent, served

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:.*imghdr:DeprecationWarning")  # Apprise imports it
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@contextmanager
def receiver(statuses: Sequence[int] = ()) -> Iterator[tuple[str, list[str]]]:
    """Take messages at an address of Apprise; each is answered with the next status, then with 200."""
    taken: list[str] = []
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = left.pop(0) if left else 200
            if status == 200:
                taken.append(f"{message['title']} | {message['message']}")
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"json://127.0.0.1:{server.server_port}/", taken
        finally:
            server.shutdown()


def results() -> Counter:
    return Counter("notices", "Results.", ["result"], registry=CollectorRegistry())


def count(counter: Counter, result: str) -> float:
    found: float = counter.labels(result)._value.get()
    return found


def event(action: str, group: str = "train", run: int = 1, detail: str = "why") -> AuditEvent:
    return AuditEvent(
        id=1, at=NOW, who="server", action=action, object=group, detail=detail, code="x", values={"run": run}
    )


def test_a_failure_is_one_notice_to_the_server_and_to_whoever_started_it() -> None:
    with receiver() as (common, to_all), receiver() as (own, to_ann):
        counted = results()
        common_receiver = NoticeReceiver(url=common, events=("failing", "failed", "finished"))
        notices = Notices(
            [common_receiver], lambda group: own if group == "train" else "", "https://pg.example/", counted
        )
        notices.start()
        for one in (
            event("failing", run=1),
            event("failed", run=1),
            event("degraded"),
            event("failed", run=2),
            event("start"),
            event("finished", group="other"),
        ):
            notices.receive(one)
        until(lambda: len(to_all) == 3 and len(to_ann) == 3, "the notices")
        notices.stop()
    where = "why https://pg.example/groups/train"
    assert to_all == [
        f"ProcGuard: train failing | {where}",
        f"ProcGuard: train failed | {where}",
        "ProcGuard: other finished | why https://pg.example/groups/other",
    ]
    assert [one.partition(" |")[0] for one in to_ann] == [
        "ProcGuard: train failing",
        "ProcGuard: train degraded",
        "ProcGuard: train failed",
    ]
    assert (count(counted, "sent"), count(counted, "lost")) == (6, 0)


def test_a_receiver_that_fails_is_tried_again_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices_module, "_FIRST_PAUSE_S", 0.01)
    with (
        receiver([500, 503]) as (busy, late),
        receiver([500] * 9) as (broken, never),
        receiver() as (well, good),
    ):
        counted = results()
        receivers = [NoticeReceiver(url=url, events=("finished",)) for url in (broken, busy, well)]
        notices = Notices(receivers, lambda _group: "", "", counted)
        notices.start()
        notices.receive(event("finished"))
        until(lambda: good and late and count(counted, "lost") == 1, "what becomes of each")
        notices.stop()
    assert not never
    assert count(counted, "sent") == 2


def test_nobody_is_called_by_what_a_detail_holds() -> None:
    notice = Notice("train", "failed", '<!channel> <at user_id="all">x</at>' + "字" * 2_000, "https://pg/g")
    assert "<" not in notice.body
    assert len(notice.body.encode()) < 1_600
    assert notice.body.endswith(" https://pg/g")


def test_whoever_starts_a_group_gets_its_notices(tmp_path: Path) -> None:
    with receiver() as (own, to_op), served(tmp_path, notice_schemes=("json",)) as server:
        agent, people = FakeAgent(server, "gn6"), server.person()
        refused = people.put("/api/v1/me/notices", json={"address": "syslog://x"})
        assert (refused.status_code, refused.json()["code"]) == (409, "notice-scheme")
        assert people.put("/api/v1/me/notices", json={"address": own}).status_code == 204
        group = {"name": "train", "settings": {"command": "x", "master_addr": "gn6"}}
        assert people.post("/api/v1/groups", json=group).json()["settings"]["owners"] == ["op"]
        people.post("/api/v1/move", json={"workers": ["gn6-0"], "group": "train"})
        people.post("/api/v1/groups/train/start")
        until(lambda: agent.beat() and people.get("/api/v1/groups/train").json()["phase"] == "running")
        agent.end(0, 3)
        until(lambda: agent.beat() and to_op, "the notice")
        assert to_op[0].startswith("ProcGuard: train failing | run 1: gn6-0: ended with exit code 3")
        page = people.get("/account").text
        assert own in page
        assert "json" in page


@pytest.mark.parametrize(
    "notices", ["[{url: hooks.example/t0ps3cret}]", "[hooks.example/t0ps3cret]", "x/t0ps3cret"]
)
def test_a_receiver_that_is_none_is_refused_without_its_address(tmp_path: Path, notices: str) -> None:
    config = tmp_path / "procguard.yaml"
    config.write_text(f"notices: {notices}\n")
    with pytest.raises(InputError, match="notices") as refused:
        read_settings(config)
    assert "t0ps3cret" not in str(refused.value)
    with pytest.raises(InputError, match="not an Apprise address") as refused:
        Notices([NoticeReceiver(url="nosuch://t0ps3cret")], lambda _group: "", "", results())
    assert "t0ps3cret" not in str(refused.value)


def test_alerts_and_board_ask_for_what_the_server_measures(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        agent, people = FakeAgent(server, "gn6"), server.person("viewer")
        gpu = {"index": 3, "utilization_percent": 41.5, "memory_used_gib": 7.0}
        agent.reports[0]["gpus"] = [gpu]
        agent.machine = {"cpu_percent": 5.0, "memory_used_gib": 1.0, "memory_total_gib": 2.0}
        agent.beat()
        owner = server.person()
        owner.post("/api/v1/groups", json={"name": "train"})
        owner.post("/api/v1/move", json={"workers": ["gn6-0"], "group": "train"})
        counts, text = server.client().get("/metrics").text, people.get("/metrics").text
        assert server.client("pgt_no-token").get("/metrics").text.count("gn6") == 0
    assert "gn6" not in counts
    assert "train" not in counts
    assert 'procguard_node_gpu_utilization_percent{gpu="3",group="train",node="gn6"} 41.5' in text
    assert 'procguard_group_phase{group="train",phase="idle"} 1.0' in text
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    measured = {sample.name for sample in samples} | {family.name for family in families}
    labels = {(sample.name, name) for sample in samples for name in sample.labels}
    values = {(sample.name, *label) for sample in samples for label in sample.labels.items()}
    alerts = yaml.safe_load((ROOT / "configs/procguard/alerts.yaml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in rules)
    board = json.loads((ROOT / "configs/procguard/grafana.json").read_text())
    panels, variables = board["panels"], {one["name"]: one for one in board["templating"]["list"]}
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert variables["group"]["multi"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    queries = [one["query"]["query"] for one in variables.values() if one["type"] == "query"]
    asked = [*(rule["expr"] for rule in rules), *shown, *queries]
    assert {name for one in asked for name in re.findall(r"procguard_\w+", one)} - measured == set()
    matched = {
        (name, *matcher)
        for one in asked
        for name, inside in re.findall(r"(procguard_\w+)\{([^}]*)\}", one)
        for matcher in re.findall(r'(\w+)=~?"([^"]*)"', inside)
    }
    assert {(name, label) for name, label, _ in matched} - labels == set()
    assert {one for one in matched if not one[2].startswith("$")} - values == set()
    assert {value[1:] for _, _, value in matched if value.startswith("$")} == {"group", "node"}
    assert {"group", "node"} <= {*variables}
    legends = re.findall(r"\{\{(\w+)\}\}", json.dumps(panels))
    assert set(legends) - {label for _, label in labels} == set()
