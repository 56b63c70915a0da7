"""The state of a run at any time, for ``inspect``, Prometheus and the status of a TrainJob."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from platform_launch.events import Event
from platform_launch.launch.statistics.cost import RunClock, RunCost
from platform_launch.text import Phrase, counted

if TYPE_CHECKING:
    from platform_launch.health.comparison import GpuSample, NodeSample
    from platform_launch.health.finding import DeviceFinding, NodeHealth
    from platform_launch.launch.health_watch import HealthWatch
    from platform_launch.launch.training_command import HealthOptions


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
            "cost_line": Phrase("cost so far: {cost}", cost=self.cost.in_words()),
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
    """Reports a run over all its attempts; each attempt brings its own device monitor."""

    def __init__(self, clock: RunClock | None = None) -> None:
        self.clock = clock or RunClock()
        self._devices: HealthOptions | None = None
        self._health: HealthWatch | None = None
        self._report_event: Callable[[Event], None] | None = None

    def begin(
        self, devices: HealthOptions, report_event: Callable[[Event], None], health: HealthWatch | None = None
    ) -> None:
        """Begin an attempt: ``report_event`` reports into its output, ``health`` monitors its devices."""
        self._devices, self._report_event, self._health = devices, report_event, health

    def report_event(self, event: Event) -> None:
        """Report an event in the output of the processes."""
        if self._report_event is not None:
            self._report_event(event)

    def report(self, *, of_all_nodes: bool) -> RunReport:
        """Return the state of the run. ``of_all_nodes`` also queries other nodes, which may take seconds."""
        cost, restarts = self.clock.so_far(), self.clock.restarts
        here, health = self._devices, self._health
        if here is None:  # the rendezvous is still going on
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
