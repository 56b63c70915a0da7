"""Which node of which job this is: the value that all other packages start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from platform_launch.errors import TopologyError
from platform_launch.text import Phrase, counted
from platform_launch.values import dataclass

DEFAULT_MASTER_PORT = 29500


@dataclass(frozen=True)
class Overrides:
    """The user's flags. Each field overrides all variables; None means "not given".

    ``spares`` of the nodes that the platform starts wait until another node is lost; a restart needs
    ``min_nodes``. Node 0 decides on the rest: ``stands_in_for`` is the rank that it gave to this node instead
    of the platform's, ``moved_to`` is the host of the new node 0 after the first one was lost, and
    ``remaining`` is how many nodes the job continues with.
    """

    platform: str | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    nproc_per_node: int | None = None
    spares: int = 0
    min_nodes: int | None = None
    stands_in_for: int | None = None
    moved_to: str | None = None
    remaining: int | None = None


@dataclass(frozen=True)
class Topology:
    """One node's position in the job. All nodes must agree on everything but ``node_rank``.

    ``nnodes`` and ``node_rank`` count machines or pods; ``world_size`` counts processes, always.
    ``nproc_per_node`` is None until the platform, the user or the number of GPUs decides it.
    ``hosts`` is ordered by node rank and may be empty: most platforms do not give it.
    ``accelerators`` is the number that the platform allocated on this node, None if it does not tell.
    ``interface`` is the network interface that the platform recommends, if any.
    ``spares`` nodes are started in addition to ``nnodes``: those whose rank is ``nnodes`` or above. A restart
    needs ``min_nodes``, None: all. ``missing`` nodes were started too, and the job continues without them.
    ``port_was_chosen``: the platform or the user gave the port; otherwise it is computed, or the default.
    ``sources`` maps each field to the variable, flag or rule it came from.
    """

    platform: str
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    nproc_per_node: int | None = None
    hosts: tuple[str, ...] = ()
    job_id: str | None = None
    restart_count: int | None = None
    interface: str | None = None
    accelerators: int | None = None
    spares: int = 0
    min_nodes: int | None = None
    missing: int = 0
    port_was_chosen: bool = True
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nnodes < 1:
            raise TopologyError(
                Phrase(
                    "nnodes={nnodes} ({nnodes_source}): expected at least 1",
                    nnodes=self.nnodes,
                    nnodes_source=self._source("nnodes"),
                )
            )
        started = self.launched + self.spares
        if not 0 <= self.node_rank < started:
            raise TopologyError(
                Phrase(
                    "node rank {rank} ({rank_source}) is out of range for {nodes} ({nnodes_source}): "
                    "expected 0–{last}",
                    rank=self.node_rank,
                    rank_source=self._source("node_rank"),
                    nodes=counted(started, "node"),
                    nnodes_source=self._source("nnodes"),
                    last=started - 1,
                ),
                "ranks count from 0; correct the variables, or pass --nnodes and --node-rank",
            )
        if self.min_nodes is not None and not 1 <= self.min_nodes <= self.nnodes:
            raise TopologyError(
                Phrase(
                    "--min-nodes {least} for {nodes} ({nnodes_source}): expected 1–{most}",
                    least=self.min_nodes,
                    nodes=counted(self.nnodes, "node"),
                    nnodes_source=self._source("nnodes"),
                    most=self.nnodes,
                ),
            )
        if self.nproc_per_node is not None and self.nproc_per_node < 1:
            raise TopologyError(
                Phrase(
                    "nproc_per_node={nproc_per_node} ({source}): expected at least 1",
                    nproc_per_node=self.nproc_per_node,
                    source=self._source("nproc_per_node"),
                ),
            )

    @property
    def world_size(self) -> int | None:
        """Number of processes in the job, or None while ``nproc_per_node`` is unknown."""
        return None if self.nproc_per_node is None else self.nnodes * self.nproc_per_node

    @property
    def launched(self) -> int:
        """Number of nodes that the job began with, without spares."""
        return self.nnodes + self.missing

    @property
    def is_master(self) -> bool:
        """Whether this node hosts the rendezvous (node rank 0)."""
        return self.node_rank == 0

    @property
    def is_spare(self) -> bool:
        """Whether this node waits until one of the others is lost."""
        return self.node_rank >= self.nnodes

    @property
    def places(self) -> tuple[str, ...]:
        """The addresses at which the nodes may meet, in order: node 0, or if it is lost, the next.

        Empty if they can only meet at node 0, see :attr:`why_not_moved`.
        """
        others = (self.hosts[rank] for rank in self.place_ranks[1:])
        return () if self.why_not_moved else (self.master_addr, *others)

    @property
    def place_ranks(self) -> tuple[int, ...]:
        """The ranks that were started at the places: one more than may be lost, the spares first."""
        last = range(self.nnodes - 1, self.least - 1, -1)
        return (0, *range(self.nnodes, self.nnodes + self.spares), *last)

    @property
    def least(self) -> int:
        """How many nodes a restart needs."""
        return self.nnodes if self.min_nodes is None else self.min_nodes

    @property
    def why_not_moved(self) -> str:
        """Why the job cannot continue with another node 0; empty if it can."""
        if not self.spares and self.least == self.nnodes:
            return "it has no spares"
        if not self.hosts:
            return Phrase("{platform} does not list the nodes' hosts", platform=self.platform)
        if len(set(self.hosts)) < self.nnodes + self.spares:
            return "some of its nodes share a host"
        if 2 * self.least <= self.nnodes + self.spares:
            return Phrase(
                "a restart needs only {least} of its {started} nodes, so that both parts of a divided job "
                "could restart",
                least=self.least,
                started=self.nnodes + self.spares,
            )
        return ""

    def _source(self, name: str) -> str:
        return self.sources.get(name, "unknown source")

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form of ``platform-launch topology``."""
        return {
            "platform": self.platform,
            "level": "node",
            "nnodes": self.nnodes,
            "node_rank": self.node_rank,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "nproc_per_node": self.nproc_per_node,
            "world_size": self.world_size,
            "hosts": list(self.hosts),
            "spares": self.spares,
            "min_nodes": self.min_nodes,
            "missing": self.missing,
            "job_id": self.job_id,
            "restart_count": self.restart_count,
            "sources": dict(self.sources),
            "warnings": list(self.warnings),
        }


def node_prefix(node_rank: int) -> str:
    """Return the prefix of a node's output lines, for output of several nodes in one place."""
    return f"[node {node_rank}] "
