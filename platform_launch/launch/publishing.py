"""What a launch tells outside the job while it runs: metrics for Prometheus, a TrainJob's status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import InstallationError
from platform_launch.events import event
from platform_launch.extras import install_extra
from platform_launch.hostlist import bracketed
from platform_launch.launch.options import TogetherFlags
from platform_launch.launch.run_report import RunReport, RunReporter
from platform_launch.launch.trainjob_status import URL, TrainJobStatus
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from platform_launch.launch.metrics import MetricsServer


def publishers(
    env: Environment, flags: TogetherFlags, console: Console, reporter: RunReporter, *, leads: bool
) -> list[MetricsServer | TrainJobStatus]:
    """Return who tells of the run; the node that ``leads`` tells of all nodes, the others of themselves.

    Raises InstallationError where metrics were asked for and their library is missing. A port that is taken,
    perhaps by another job's launcher, is a warning.
    """

    def report() -> RunReport:
        return reporter.report(of_all_nodes=leads)

    found: list[MetricsServer | TrainJobStatus] = []
    if flags.metrics is not None:
        found += _metrics(flags.metrics, report, console)
    if leads and URL in env and not flags.no_trainjob_status:
        found.append(TrainJobStatus(env, report, reporter.tell))
    return found


@contextmanager
def publishing(chosen: list[MetricsServer | TrainJobStatus]) -> Iterator[None]:
    """Let them tell while a training runs."""
    with ExitStack() as stack:
        for publisher in chosen:
            publisher.start()
            stack.callback(publisher.stop)
        yield


def _metrics(
    address: tuple[str, int], report: Callable[[], RunReport], console: Console
) -> list[MetricsServer]:
    try:
        from platform_launch.launch.metrics import MetricsServer
    except ModuleNotFoundError as error:
        raise InstallationError(
            Phrase("this Python has no {module}, which --metrics-port answers with", module=error.name),
            Phrase("{install}, or leave --metrics-port out", install=install_extra("metrics")),
        ) from error
    host, port = address
    try:
        server = MetricsServer(address, report)
    except OSError as error:
        problem = error.strerror or str(error)
        console.tell(event("metrics-not-served", host=bracketed(host), port=port, problem=problem))
        return []
    console.tell(event("metrics-served", host=bracketed(host), port=server.port))
    return [server]
