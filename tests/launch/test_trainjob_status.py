"""The status of a Kubeflow TrainJob, posted to a server that does what Trainer's status server does."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.events import Event
from platform_launch.health.finding import DeviceFinding, Grade, NodeHealth
from platform_launch.launch.cost import RunCost, StartCost, run_cost
from platform_launch.launch.run_report import (
    CA_CERT,
    TOKEN,
    NodeDevices,
    RunReport,
    TrainJobStatus,
    trainer_status,
)
from platform_launch.observe.steps import StepReading, StepsNamed
from platform_launch.platforms.kubeflow import TRAINJOB_SERVER
from tests.lab import certificate
from tests.lab.waiting import until
from tests.launch.running import launch

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/mine/status"
SECRET = "eyJ.a.token"


class StatusServer:
    """Takes a TrainJob's status as Trainer 2.2 does; ``refuses`` answers with that code instead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refuses = 0
        self.requests = 0
        self.posted: list[dict[str, Any]] = []
        cert, key = certificate.make(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.requests += 1
                code = server.refuses or 200
                if self.path != PATH or self.headers["Authorization"] != f"Bearer {SECRET}":
                    code = 403
                if code == 200:
                    server.posted.append(json.loads(body)["trainerStatus"])
                answer = json.dumps({"status": "Failure", "message": "no such job", "code": code}).encode()
                self.send_response(code)
                self.send_header("Location", f"https://127.0.0.1:{server.port}/elsewhere")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_port
        Thread(target=self._http.serve_forever, daemon=True).start()
        (folder / "token").write_text(f"{SECRET}\n")

    def variables(self) -> dict[str, str]:
        return {
            TRAINJOB_SERVER: f"https://127.0.0.1:{self.port}{PATH}",
            CA_CERT: str(self.folder / "server.crt"),
            TOKEN: str(self.folder / "token"),
        }

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    with closing(StatusServer(tmp_path)) as made:
        yield made


def cost(*readings: tuple[float, int], target: int | None = None) -> RunCost:
    named = StepsNamed(tuple(StepReading(*reading) for reading in readings), target)
    return run_cost([StartCost(1.0, 100.0, named)])


def report(step: int = 50) -> RunReport:
    return RunReport(0, "gn0", 0, cost((0.0, 0), (50.0, step), target=200))


@contextmanager
def posting(variables: dict[str, str]) -> Iterator[tuple[list[Event], list[RunReport]]]:
    """Post the last of the reports that the test puts into the list, again and again."""
    said: list[Event] = []
    reports = [report()]
    status = TrainJobStatus(Environment(variables), lambda: reports[-1], said.append, every_s=0.02)
    status.start()
    try:
        yield said, reports
    finally:
        status.stop()


def test_a_run_in_a_trainjob_ends_with_its_last_step_in_the_status(server: StatusServer) -> None:
    with launch(server.folder, variables=server.variables()) as running:
        assert running.end() == 0
    (status,) = server.posted
    assert (status["progressPercentage"], status["metrics"][0]) == (100, {"name": "step", "value": "10"})
    assert status["lastUpdatedTime"].endswith("Z")


def test_the_training_may_keep_the_status_to_itself(server: StatusServer) -> None:
    with launch(server.folder, "--no-trainjob-status", variables=server.variables()) as running:
        assert running.end() == 0
    assert server.requests == 0


def test_a_status_is_posted_when_it_has_changed(server: StatusServer) -> None:
    with posting(server.variables()) as (said, reports):
        until(lambda: server.posted)
        reports.append(report(60))
        until(lambda: len(server.posted) == 2)
    assert [status["progressPercentage"] for status in server.posted] == [25, 30]
    assert server.posted[0]["estimatedRemainingSeconds"] == 150
    assert said == []


def test_who_refuses_is_named_once_and_asked_again_for_a_while(server: StatusServer) -> None:
    server.refuses = 404
    with posting(server.variables()) as (said, _):
        until(lambda: server.requests >= 3)
        server.refuses = 0
        until(lambda: server.posted)
    assert [one.id for one in said] == ["trainjob-status-refused"]
    assert said[0].fields["problem"] == "127.0.0.1 answers 404: no such job"


def test_who_always_refuses_is_left_alone_until_the_end(server: StatusServer) -> None:
    server.refuses = 307  # a redirection, which is not followed
    with posting(server.variables()) as (said, reports):
        until(lambda: server.requests >= 10, pause_s=1.0)  # longer than until another would come
        server.refuses = 0
        reports.append(report(60))
    assert server.requests == 11
    assert [status["progressPercentage"] for status in server.posted] == [30]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (TRAINJOB_SERVER, "http://127.0.0.1:1/"),
        (TRAINJOB_SERVER, "https://"),
        (TRAINJOB_SERVER, "https://127.0.0.1:x/"),
        (CA_CERT, "/nowhere"),
        (CA_CERT, "/etc/hostname"),
        (TOKEN, "/nowhere"),
        (TOKEN, "/dev/zero"),
        (TOKEN, "two lines"),
    ],
)
def test_values_that_cannot_be_used_cost_a_line(server: StatusServer, name: str, value: str) -> None:
    if value == "two lines":
        value = str(server.folder / "lines")
        Path(value).write_text("a\r\nX-Injected: b")
    with posting({**server.variables(), name: value}) as (said, _):
        until(lambda: said)
    assert server.posted == []


def test_a_server_of_another_authority_gets_no_token(server: StatusServer) -> None:
    other = server.folder / "other"
    other.mkdir()
    cert, _ = certificate.make(other)
    with posting({**server.variables(), CA_CERT: str(cert)}) as (said, _):
        until(lambda: said)
    assert server.requests == 0


def test_what_is_not_known_is_left_out() -> None:
    assert trainer_status(RunReport(0, "", 0, cost())) == {}
    bad = DeviceFinding("gpu-lost", Grade.BAD, "GPU 3", "is lost")
    node = NodeDevices(1, "gn1", NodeHealth(Grade.BAD, ("GPU 3",)), (bad,))
    assert trainer_status(RunReport(0, "gn0", 2, cost(), (node,))) == {
        "metrics": [{"name": "restarts", "value": "2"}, {"name": "nodes_bad", "value": "1"}]
    }
    assert "progressPercentage" not in trainer_status(RunReport(0, "", 0, cost((0.0, 1), (9.0, 10))))
