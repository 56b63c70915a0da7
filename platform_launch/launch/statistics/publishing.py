"""Publishes a run's report: to Prometheus (``metrics``), and as the status of its Kubeflow TrainJob.

A TrainJob has a status since Trainer 2.2. Sources: kubeflow/trainer, the proposal 2779 (trainjob-progress),
pkg/statusserver, and the plugin that sets the variables. Nothing here may harm a job: each request has a
timeout, and after ten rejections in a row only the final status is posted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event as ThreadEvent
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import InstallationError, LaunchError
from platform_launch.events import Event, event
from platform_launch.extras import install_extra
from platform_launch.hostlist import bracketed
from platform_launch.launch.options import TogetherFlags
from platform_launch.text import Phrase, iso_utc

if TYPE_CHECKING:
    from http.client import HTTPSConnection

    from platform_launch.launch.statistics.metrics import MetricsServer
    from platform_launch.launch.statistics.run_report import RunReport, RunReporter

URL = "KUBEFLOW_TRAINER_SERVER_URL"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - the name of a variable

# The controller writes each post to the API server.
EVERY_S = 30.0
_LIMIT_S = 5.0
_MOST_REFUSALS = 10
_MOST_BYTES = 64 * 1024
_LARGEST_INT = 2**31 - 1


def publishers(
    env: Environment, flags: TogetherFlags, console: Console, reporter: RunReporter, *, leads: bool
) -> list[MetricsServer | TrainJobStatus]:
    """Return the publishers of the run; the node that ``leads`` reports all nodes, the others themselves.

    Raises InstallationError if metrics are requested and their library is missing. A port in use, perhaps by
    another job's launcher, is a warning.
    """

    def report() -> RunReport:
        return reporter.report(of_all_nodes=leads)

    found: list[MetricsServer | TrainJobStatus] = []
    if flags.metrics is not None:
        found += _metrics(flags.metrics, report, console)
    if leads and URL in env and not flags.no_trainjob_status:
        found.append(TrainJobStatus(env, report, reporter.report_event))
    return found


@contextmanager
def publishing(chosen: list[MetricsServer | TrainJobStatus]) -> Iterator[None]:
    """Publish while the processes run."""
    with ExitStack() as stack:
        for publisher in chosen:
            publisher.start()
            stack.callback(publisher.stop)
        yield


def _metrics(
    address: tuple[str, int], report: Callable[[], RunReport], console: Console
) -> list[MetricsServer]:
    try:
        from platform_launch.launch.statistics.metrics import MetricsServer
    except ModuleNotFoundError as error:
        raise InstallationError(
            Phrase("--metrics-port needs {module}, which is not installed", module=error.name),
            Phrase("{install}, or leave --metrics-port out", install=install_extra("metrics")),
        ) from error
    host, port = address
    try:
        server = MetricsServer(address, report)
    except OSError as error:
        problem = error.strerror or str(error)
        console.report(event("metrics-not-served", host=bracketed(host), port=port, problem=problem))
        return []
    console.report(event("metrics-served", host=bracketed(host), port=server.port))
    return [server]


class TrainJobStatus:
    """Posts the run's ``run_report()`` periodically, and once more at its end."""

    def __init__(
        self,
        env: Environment,
        run_report: Callable[[], RunReport],
        report_event: Callable[[Event], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._env = env
        self._run_report = run_report
        self._report_event = report_event
        self._every_s = every_s
        self._posted: dict[str, object] = {}
        self._refusals = 0
        self._ended = ThreadEvent()
        self._thread = Thread(target=self._run, name="trainjob-status", daemon=True)

    def start(self) -> None:
        """Start posting in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Post the final status, within a few seconds."""
        self._ended.set()
        self._thread.join(_LIMIT_S)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._update()
            if self._refusals == _MOST_REFUSALS:
                self._ended.wait()
        self._update()

    def _update(self) -> None:
        try:
            status = trainer_status(self._run_report())
            if status and status != self._posted:
                self._post({**status, "lastUpdatedTime": iso_utc()})
                self._posted, self._refusals = status, 0
        except Exception as error:  # no error here may harm the job
            self._refusals += 1
            if self._refusals == 1:
                problem = error.message if isinstance(error, LaunchError) else repr(error)
                self._report_event(event("trainjob-status-refused", problem=problem))

    def _post(self, status: dict[str, object]) -> None:
        """Post a status. Raises LaunchError, OSError."""
        url = urlsplit(self._env.get(URL, "").strip())
        connection = self._connection(url.hostname, url.port)
        try:
            body = json.dumps({"trainerStatus": status})
            headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
            connection.request("POST", url.path or "/", body, headers)
            answer = connection.getresponse()
            content = answer.read(_MOST_BYTES)
        finally:
            connection.close()
        if answer.status != 200:
            raise LaunchError(
                Phrase(
                    "{host} answers {status}: {reason}",
                    host=url.hostname,
                    status=answer.status,
                    reason=_message(content),
                )
            )

    def _connection(self, host: str | None, port: int | None) -> HTTPSConnection:
        """Connect to the controller itself, without a proxy; redirects are not followed."""
        import ssl
        from http.client import HTTPSConnection

        if not self._env.get(URL, "").strip().startswith("https://") or not host:
            raise LaunchError(Phrase("{name} is not an https:// address", name=URL))
        path = self._env.get(CA_CERT, "").strip()
        authority = self._env.read_file(path) if path else None
        if authority is None:
            raise LaunchError(Phrase("{name}={path} cannot be read", name=CA_CERT, path=path))
        context = ssl.create_default_context(cadata=authority)
        return HTTPSConnection(host, port, timeout=_LIMIT_S, context=context)

    def _token(self) -> str:
        """Return the token, which the platform rotates."""
        path = self._env.get(TOKEN, "").strip()
        token = (self._env.read_file(path) or "").strip() if path else ""
        if not (token.isascii() and token.isprintable() and token):
            raise LaunchError(Phrase("{name}={path} contains no token", name=TOKEN, path=path))
        return token


def trainer_status(report: RunReport) -> dict[str, object]:
    """Return the status for a report, empty if there is nothing to report yet."""
    from platform_launch.health.finding import Grade

    cost = report.cost
    grades = Counter(node.health.grade for node in report.nodes)
    known = {
        "step": cost.step,
        "steps_per_second": cost.steps_per_s,
        "productive_ratio": cost.productive_share,
        "steps_lost": cost.lost_steps or None,
        "restarts": report.restarts or None,
        "nodes_suspect": grades[Grade.SUSPECT] or None,
        "nodes_bad": grades[Grade.BAD] or None,
    }
    metrics = [{"name": name, "value": f"{value:.6g}"} for name, value in known.items() if value is not None]
    if not metrics:
        return {}
    status: dict[str, object] = {"metrics": metrics}
    if cost.step is not None and cost.target_step:
        status["progressPercentage"] = min(100 * cost.step // cost.target_step, 100)
    if cost.eta_s is not None:
        status["estimatedRemainingSeconds"] = min(round(cost.eta_s), _LARGEST_INT)
    return status


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])[:200]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "no reason given"
