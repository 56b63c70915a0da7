"""The state of a run at any time: for ``inspect``, for Prometheus, and as the status of a Kubeflow TrainJob.

A TrainJob has a status since Trainer 2.2. Sources: kubeflow/trainer, the proposal 2779 (trainjob-progress),
pkg/statusserver, and the plugin that sets the variables. Nothing here may harm a job: each request has a
timeout, and after ten rejections in a row only the final status is posted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
from platform_launch.launch.cost import RunClock, RunCost
from platform_launch.plan.request import RunOptions
from platform_launch.platforms.kubeflow import TRAINJOB_SERVER
from platform_launch.text import Phrase, counted, iso_utc

if TYPE_CHECKING:
    from http.client import HTTPSConnection

    from platform_launch.health.comparison import GpuSample, NodeSample
    from platform_launch.health.finding import DeviceFinding, NodeHealth
    from platform_launch.launch.health_watch import HealthWatch
    from platform_launch.launch.metrics import MetricsServer
    from platform_launch.launch.training_command import HealthOptions

CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - the name of a variable

# The controller writes each post to the API server.
EVERY_S = 30.0
_LIMIT_S = 5.0
_MOST_REFUSALS = 10
_MOST_BYTES = 64 * 1024
_LARGEST_INT = 2**31 - 1


@dataclass(frozen=True)
class NodeDevices:
    """The devices of a node: their grade, the findings about them, and its GPUs."""

    node_rank: int
    host: str
    health: NodeHealth
    findings: tuple[DeviceFinding, ...] = ()
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True)
class RunReport:
    """The state of a run as one node knows it; ``nodes`` are those whose devices are monitored."""

    node_rank: int
    host: str
    restarts: int
    cost: RunCost
    nodes: tuple[NodeDevices, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return what ``platform-launch inspect`` adds to the stacks."""
        return {
            "restarts": self.restarts,
            "cost": self.cost.as_dict(),
            "cost_line": Phrase("so far: {summary}", summary=self.cost.describe()),
            "health": [
                {
                    "node_rank": node.node_rank,
                    "host": node.host,
                    "grade": node.health.grade.value,
                    "reasons": list(node.health.reasons),
                    "findings": [asdict(finding) for finding in node.findings],
                }
                for node in self.nodes
            ],
            "health_lines": self._health_lines(),
        }

    def _health_lines(self) -> list[str]:
        lines: list[str] = [
            Phrase(
                "node {rank} ({host}) is {grade}: {reason}",
                rank=node.node_rank,
                host=node.host,
                grade=Phrase(node.health.grade.value),
                reason=reason,
            )
            for node in self.nodes
            for reason in node.health.reasons
        ]
        if not lines and self.nodes:
            lines.append(
                Phrase("devices: nothing is wrong on {nodes}", nodes=counted(len(self.nodes), "node"))
            )
        return lines


class RunReporter:
    """Reports a run over all its attempts. ``health`` monitors the devices of the current one, if any."""

    def __init__(self, clock: RunClock | None = None) -> None:
        self.clock = clock or RunClock()
        self._devices: HealthOptions | None = None
        self.health: HealthWatch | None = None
        self._report_event: Callable[[Event], None] | None = None

    def begin(self, devices: HealthOptions, report_event: Callable[[Event], None]) -> None:
        """Begin an attempt, with ``devices``; ``report_event`` reports into its output."""
        self._devices, self._report_event, self.health = devices, report_event, None

    def report_event(self, event: Event) -> None:
        """Report an event in the output of the processes."""
        if self._report_event is not None:
            self._report_event(event)

    def report(self, *, of_all_nodes: bool) -> RunReport:
        """Return the state of the run. ``of_all_nodes`` also queries other nodes, which may take seconds."""
        cost, restarts = self.clock.so_far(), self.clock.restarts
        here, health = self._devices, self.health
        if here is None:  # the rendezvous is not complete yet
            return RunReport(0, "", restarts, cost)
        nodes = devices(health.samples(of_all_nodes=of_all_nodes)) if health is not None else ()
        return RunReport(here.node_rank, here.host, restarts, cost, nodes)

    def overview(self) -> dict[str, object]:
        """Return the part of ``platform-launch inspect`` about the run."""
        return self.report(of_all_nodes=True).as_dict()


def devices(samples: Sequence[NodeSample]) -> tuple[NodeDevices, ...]:
    """Assess the nodes' devices from their samples, each alone and compared with each other."""
    from platform_launch.health.comparison import compare
    from platform_launch.health.finding import node_health

    between = compare(samples)
    found = []
    for node in sorted(samples, key=lambda node: node.node_rank):
        differing = [finding for rank, finding in between if rank == node.node_rank]
        findings = (*node.findings, *differing)
        found.append(NodeDevices(node.node_rank, node.host, node_health(findings), findings, node.gpus))
    return tuple(found)


def publishers(
    env: Environment, options: RunOptions, console: Console, reporter: RunReporter, *, leads: bool
) -> list[MetricsServer | TrainJobStatus]:
    """Return the publishers of the run; the node that ``leads`` reports all nodes, the others themselves.

    Raises InstallationError if metrics are requested and their library is missing. A port in use, perhaps by
    another job's launcher, is a warning.
    """

    def report() -> RunReport:
        return reporter.report(of_all_nodes=leads)

    found: list[MetricsServer | TrainJobStatus] = []
    if options.metrics is not None:
        found += _metrics(options.metrics, report, console)
    if leads and TRAINJOB_SERVER in env and not options.no_trainjob_status:
        found.append(TrainJobStatus(env, report, reporter.report_event))
    return found


def _metrics(
    address: tuple[str, int], report: Callable[[], RunReport], console: Console
) -> list[MetricsServer]:
    try:
        from platform_launch.launch.metrics import MetricsServer
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
        url = urlsplit(self._env.get(TRAINJOB_SERVER, "").strip())
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

        if not self._env.get(TRAINJOB_SERVER, "").strip().startswith("https://") or not host:
            raise LaunchError(Phrase("{name} is not an https:// address", name=TRAINJOB_SERVER))
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
