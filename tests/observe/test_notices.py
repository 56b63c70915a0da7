"""A node that will be taken away: each cloud's metadata service, as its documentation describes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from platform_launch.environment import Environment
from platform_launch.observe import notices
from platform_launch.observe.notices import (
    MetadataService,
    NoticeWatch,
    ReclaimNotice,
    aws,
    azure,
    gcp,
    slurm,
    sources,
)
from tests.lab.waiting import until

AT = 1505722920.0  # 2017-09-18T08:22:00Z
AWS_HEADERS = {"X-aws-ec2-metadata-token": "secret"}
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


@contextmanager
def metadata(answers: dict[str, str], headers: dict[str, str]) -> Iterator[MetadataService]:
    """A metadata service: it refuses requests without the header that the real one wants."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            has_ttl = "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
            self.reply(200 if has_ttl and self.path == "/latest/api/token" else 400, "secret")

        def do_GET(self) -> None:
            if any(self.headers.get(name) != value for name, value in headers.items()):
                self.reply(403, "")
            else:
                self.reply(200 if self.path in answers else 404, answers.get(self.path, ""))

        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield MetadataService(f"127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, None),
        ({"action": "none"}, None),
        ({"action": "terminate", "time": "2017-09-18T08:22:00Z"}, ReclaimNotice("AWS", AT)),
    ],
)
def test_aws_tells_of_an_interruption(answers: dict[str, str], expected: ReclaimNotice | None) -> None:
    given = {"/latest/meta-data/spot/instance-action": json.dumps({"time": "", **answers})} if answers else {}
    with metadata(given, AWS_HEADERS) as service:
        assert aws(service)() == expected


@pytest.mark.parametrize("preempted", [False, True])
def test_gcp_tells_of_a_preemption(preempted: bool) -> None:
    answers = {"/computeMetadata/v1/instance/preempted": str(preempted).upper()}
    with metadata(answers, {"Metadata-Flavor": "Google"}) as service:
        notice = gcp(service)()
    assert (notice is not None and notice.source == "GCP") == preempted


@pytest.mark.parametrize(
    ("kind", "resource", "expected"),
    [
        ("Preempt", "vm1", ReclaimNotice("Azure", AT)),
        ("Preempt", "vm2", None),
        ("Freeze", "vm1", None),
    ],
)
def test_azure_tells_of_events_of_this_vm(kind: str, resource: str, expected: ReclaimNotice | None) -> None:
    event = {"EventType": kind, "Resources": [resource], "NotBefore": "Mon, 18 Sep 2017 08:22:00 GMT"}
    answers = {NAME: "vm1", EVENTS: json.dumps({"Events": [event]})}
    with metadata(answers, {"Metadata": "true"}) as service:
        assert azure(service)() == expected


@pytest.mark.parametrize(
    ("total_s", "passed_s", "near"),
    [(3600, 0, False), (3600, 3539, False), (3600, 3541, True), (100, 74, False), (100, 76, True)],
)
def test_slurms_end_time_is_a_notice_when_it_is_near(
    monkeypatch: pytest.MonkeyPatch, total_s: float, passed_s: float, near: bool
) -> None:
    clock = [1e9]
    monkeypatch.setattr("platform_launch.observe.notices.time.time", lambda: clock[0])
    ask = slurm(1e9 + total_s)
    clock[0] += passed_s
    assert (ask() is not None) == near


@pytest.mark.parametrize(
    ("vendor", "count"),
    [("Amazon EC2", 1), ("Google", 1), ("Microsoft Corporation", 1), ("Dell Inc.", 0), (None, 0)],
)
def test_a_metadata_service_is_asked_on_a_machine_of_its_cloud_only(
    tmp_path: Path, vendor: str | None, count: int
) -> None:
    if vendor is not None:
        dmi = tmp_path / "sys" / "class" / "dmi" / "id"
        dmi.mkdir(parents=True)
        (dmi / "sys_vendor").write_text(f"{vendor}\n")
    assert len(sources(Environment({}, root=tmp_path), MetadataService("127.0.0.1:9"))) == count


def test_a_notice_is_heard_whatever_other_sources_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_LOOK_S", 0.01)
    asked: list[int] = []
    given: list[ReclaimNotice] = []

    def later() -> ReclaimNotice | None:
        asked.append(1)
        return ReclaimNotice("GCP", None) if len(asked) > 2 else None

    def broken() -> ReclaimNotice | None:
        raise ValueError

    watch = NoticeWatch([broken, aws(MetadataService("127.0.0.1:9")), later], given.append)
    watch.start()
    until(lambda: given)
    watch.stop()
    assert set(given) == {ReclaimNotice("GCP", None)}
