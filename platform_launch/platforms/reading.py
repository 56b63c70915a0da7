"""What one dialect reads for this node: values with their sources, problems and doubts.

A reader does not stop at the first unusable value. It records the problem for the field and continues, so
that a flag can override just that field, and an error can still show everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from platform_launch.environment import Environment, Sourced, is_service_link, parse_port
from platform_launch.errors import TopologyError, shown
from platform_launch.hostlist import parse_host, split_host_port
from platform_launch.text import Phrase
from platform_launch.topology import DEFAULT_MASTER_PORT

T = TypeVar("T")

DEFAULT_PORT = Sourced(DEFAULT_MASTER_PORT, Phrase("default"))

USER_NNODES = ("NNODES", "NUM_NODES", "NODE_COUNT")
"""Names by which users give the number of nodes if the platform does not."""

FLAGS = {
    "nnodes": "--nnodes",
    "node_rank": "--node-rank",
    "master_addr": "--master-addr",
    "master_port": "--master-port",
    "nproc_per_node": "--nproc-per-node",
}


@dataclass
class Reading:
    """One node's topology as far as it could be read; ``resolve`` makes a Topology of it.

    ``problems`` maps a field to why its value cannot be used; a flag for that field overrides it.
    ``evidence``: the variables by which the platform was recognised. ``doubts`` maps a field to a warning
    about how it was read; a flag for that field removes it too. ``missing`` maps a field to the variables
    that could have set it. ``level`` is ``process`` when this command was started once per process instead of
    once per node; then ``rank``, ``local_rank`` and ``world_size`` are the process's own. ``own_names`` are
    further names and addresses of this node, to find it in ``hosts``. ``default_port`` is None for platforms
    that know no rendezvous port at all. ``hint`` and ``address_hint`` are the platform's advice for a missing
    field, and for the address.
    """

    platform: str
    level: str = "node"
    nnodes: Sourced[int] | None = None
    node_rank: Sourced[int] | None = None
    master_addr: Sourced[str] | None = None
    master_port: Sourced[int] | None = None
    nproc_per_node: Sourced[int] | None = None
    hosts: Sourced[tuple[str, ...]] | None = None
    job_id: Sourced[str] | None = None
    restart_count: Sourced[int] | None = None
    interface: Sourced[str] | None = None
    accelerators: Sourced[int] | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    default_port: Sourced[int] | None = DEFAULT_PORT
    own_names: frozenset[str] = frozenset()
    hint: str = ""
    address_hint: str = ""
    evidence: str = ""
    warnings: list[str] = field(default_factory=list)
    problems: dict[str, TopologyError] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def attempt(self, name: str, read: Callable[[], T | None], expected: str) -> T | None:
        """Return ``read()`` for a field; record its error, or that ``expected`` is missing."""
        try:
            value = read()
        except TopologyError as error:
            self.add_problem(name, error)
            return None
        if value is None:
            self.missing[name] = expected
        else:
            self.missing.pop(name, None)
        return value

    def compose_master_addr(self, address: str, names: str, source: str = "") -> None:
        """Set node 0's address, composed from ``names``, or add the problem with it."""
        self.master_addr = self.attempt(
            "master_addr", lambda: Sourced(parse_host(address, names), source or names), ""
        )

    def add_problem(self, name: str, error: TopologyError) -> None:
        """Record why a field cannot be used. The user reads the first problem of a field."""
        self.problems.setdefault(name, error)

    def refuse(self, name: str, message: str, hint: str = "") -> None:
        """Add a problem in the usual form; the default hint names the field's flag."""
        hint = hint or Phrase("pass {flag}", flag=FLAGS[name])
        self.add_problem(
            name,
            TopologyError(
                Phrase("platform {platform}: {message}", platform=self.platform, message=message), hint
            ),
        )

    def mark_process(
        self, message: str, hint: str, *, rank: int | None, local_rank: int | None, world_size: int | None
    ) -> None:
        """Record that this command runs once per process: it must not start processes itself."""
        self.level = "process"
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size
        self.add_problem(
            "level",
            TopologyError(
                Phrase("platform {platform}: {message}", platform=self.platform, message=message), hint
            ),
        )

    def as_dict(self) -> dict[str, object]:
        """Return what could be read, in the form of ``platform-launch topology``; unknown is None."""
        fields = ("nnodes", "node_rank", "master_addr", "nproc_per_node", "job_id", "restart_count")
        known: dict[str, object] = {"platform": self.platform, "level": self.level}
        sources: dict[str, str] = {}
        for name in fields:
            sourced: Sourced[object] | None = getattr(self, name)
            known[name] = sourced.value if sourced else None
            if sourced:
                sources[name] = sourced.source
        port = self.master_port or self.default_port
        if port:
            sources["master_port"] = port.source
        return {
            **known,
            "master_port": port.value if port else None,
            "hosts": list(self.hosts.value) if self.hosts else [],
            "rank": self.rank,
            "local_rank": self.local_rank,
            "world_size": self.world_size,
            "sources": sources,
            "warnings": [*self.warnings, *self.doubts.values()],
        }


def first_text(environment: Environment, names: Iterable[str]) -> Sourced[str] | None:
    """Return the first variable that is set."""
    return next((text for name in names if (text := environment.text(name))), None)


def first_integer(environment: Environment, names: Iterable[str], minimum: int = 0) -> Sourced[int] | None:
    """Return the first variable that is set, as a whole number."""
    return next((number for name in names if (number := environment.integer(name, minimum))), None)


def first_host(environment: Environment, names: Iterable[str]) -> Sourced[str] | None:
    """Return the first variable that is set, as a host."""
    text = first_text(environment, names)
    return Sourced(parse_host(text.value, text.source), text.source) if text else None


def first_port(reading: Reading, environment: Environment, names: Iterable[str]) -> Sourced[int] | None:
    """Return the first variable that holds a port; skip Kubernetes service links with a warning."""
    for name in names:
        text = environment.text(name)
        if text is None:
            continue
        if is_service_link(text.value):
            reading.warnings.append(
                Phrase(
                    "{name} is a Kubernetes service link, not a port: ignored ({text})",
                    name=name,
                    text=shown(text.value),
                )
            )
            continue
        return Sourced(parse_port(text.value, name), name)
    return None


def fill_endpoint(reading: Reading, environment: Environment, name: str) -> None:
    """Fill address and port from a variable of the form ``host:port``, unless they are known."""
    endpoint = environment.text(name)
    if endpoint is None or reading.master_addr:
        return
    read = reading.attempt("master_addr", lambda: split_host_port(endpoint.value, name), "")
    if read is None:
        return
    host, port = read
    reading.master_addr = Sourced(host, name)
    if port and reading.master_port is None:
        reading.master_port = reading.attempt(
            "master_port", lambda: Sourced(parse_port(port, name), name), ""
        )


def disagreement(one: Sourced[int], other: Sourced[int]) -> TopologyError:
    """Return the error for two sources that must agree but do not."""
    return TopologyError(
        Phrase(
            "{one_source}={one} contradicts {other_source}={other}: expected the same number",
            one_source=one.source,
            one=one.value,
            other_source=other.source,
            other=other.value,
        ),
        "one of them is stale or counts something else: unset it, or pass the matching flag",
    )
