"""A dialect as a table: which variables identify a platform, and which of them give which field.

Most platforms are just such a table. The others have one small function that completes what the table has
read (``refine``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import reduce

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError
from platform_launch.hostlist import split_hosts
from platform_launch.platforms.reading import (
    DEFAULT_PORT,
    USER_NNODES,
    Reading,
    disagreement,
    first_host,
    first_integer,
    first_port,
    first_text,
)
from platform_launch.text import Phrase, either, joined
from platform_launch.values import dataclass

Names = tuple[str, ...]
Refine = Callable[[Reading, Environment], None]

COUNT_DEVICES = frozenset({"auto", "gpu", "cpu", "xpu"})
"""Words torchrun takes for the number of processes: count the devices."""


def _all_of(names: Names) -> str:
    return reduce(lambda one, other: Phrase("{one} and {other}", one=one, other=other), names)


@dataclass(frozen=True)
class Dialect:
    """One platform's variables. Tuples of names are in order of preference: the first that is set counts.

    ``marks``: any one group, with every name of it set, identifies the platform; ``*`` stands for any text.
    ``absent``: names that must not be set, because then something else is meant.
    ``also``: a test for marks that are not plain names; ``also_words`` describes it.
    ``same_nnodes``, ``same_node_rank``: names that must agree with the value of the field, if they are set.
    ``accelerators``: variables that count the accelerators which the platform allocated on this node.
    ``own_names``: variables that hold this node's own name or address.
    ``first_host_is_master``: node 0's address is the first entry of ``hosts``.
    ``hosts_count_nodes``: if no variable counts the nodes, the entries of ``hosts`` do.
    ``port``: the default if the platform sets none; None if no rendezvous port is known.
    ``grade``: A — the platform's source or documentation was read; B — public users of it only.
    ``hint``: what to do on this platform when a field is missing; ``address_hint``, when the address is.
    """

    name: str
    title: str
    marks: tuple[Names, ...]
    grade: str = "A"
    absent: Names = ()
    also: Callable[[Environment], bool] | None = None
    also_words: str = ""
    nnodes: Names = ()
    node_rank: Names = ()
    master_addr: Names = ()
    master_port: Names = ()
    nproc_per_node: Names = ()
    accelerators: Names = ()
    hosts: Names = ()
    job_id: Names = ()
    restart_count: Names = ()
    interface: Names = ()
    same_nnodes: Names = ()
    same_node_rank: Names = ()
    own_names: Names = ()
    first_host_is_master: bool = False
    hosts_count_nodes: bool = False
    port: Sourced[int] | None = DEFAULT_PORT
    hint: str = ""
    address_hint: str = ""
    refine: Refine | None = None
    place: str = ""

    def because(self, place: str) -> Dialect:
        """Return this dialect with the reason for its place in ``PLATFORMS``."""
        return replace(self, place=place)

    @property
    def recognised_by(self) -> str:
        """Describe the marks, e.g. ``A and B, or C, without D``."""
        groups = [*map(_all_of, self.marks), *[self.also_words] * bool(self.also_words)]
        marks = reduce(lambda one, other: Phrase("{one}, or {other}", one=one, other=other), groups)
        if not self.absent:
            return marks
        return Phrase("{marks}, without {absent}", marks=marks, absent=_all_of(self.absent))

    def matches(self, environment: Environment) -> bool:
        """Return whether the environment has this platform's marks."""
        if any(is_set(environment, name) for name in self.absent):
            return False
        if any(all(is_set(environment, name) for name in group) for group in self.marks):
            return True
        return self.also is not None and self.also(environment)

    def evidence(self, environment: Environment) -> str:
        """Return the marks that are set, e.g. ``PET_NNODES, PET_NODE_RANK``; empty if none is needed."""
        for group in self.marks:
            if group and all(is_set(environment, name) for name in group):
                return joined(group)
        return self.also_words

    def read(self, environment: Environment) -> Reading:
        """Read the table, then complete it. Never raises for values: see ``Reading.problems``."""
        reading = Reading(
            self.name,
            default_port=self.port,
            evidence=self.evidence(environment),
            hint=self.hint,
            address_hint=self.address_hint,
        )
        self._read_table(reading, environment)
        if self.refine:
            self.refine(reading, environment)
        self._fill_from_user(reading, environment)
        return reading

    def _fill_from_user(self, reading: Reading, environment: Environment) -> None:
        """Fill in what the platform does not set from the user's MASTER_ADDR and MASTER_PORT."""
        if reading.master_addr is None and "MASTER_ADDR" in environment:
            reading.master_addr = reading.attempt(
                "master_addr", lambda: first_host(environment, ("MASTER_ADDR",)), ""
            )
        if reading.master_port is None and "MASTER_PORT" not in self.master_port:
            reading.master_port = reading.attempt(
                "master_port", lambda: first_port(reading, environment, ("MASTER_PORT",)), ""
            )

    def _read_table(self, reading: Reading, environment: Environment) -> None:
        reading.nnodes = reading.attempt(
            "nnodes", lambda: first_integer(environment, self.nnodes, 1), either(self.nnodes)
        )
        reading.node_rank = reading.attempt(
            "node_rank", lambda: first_integer(environment, self.node_rank), either(self.node_rank)
        )
        reading.master_addr = reading.attempt(
            "master_addr", lambda: first_host(environment, self.master_addr), either(self.master_addr)
        )
        reading.master_port = reading.attempt(
            "master_port", lambda: first_port(reading, environment, self.master_port), ""
        )
        reading.nproc_per_node = reading.attempt(
            "nproc_per_node", lambda: first_count(environment, self.nproc_per_node), ""
        )
        reading.hosts = reading.attempt("hosts", lambda: first_hosts(environment, self.hosts), "")
        if self.first_host_is_master and reading.hosts and not reading.master_addr:
            reading.master_addr = Sourced(
                reading.hosts.value[0], Phrase("first host of {source}", source=reading.hosts.source)
            )
        if self.hosts_count_nodes and reading.hosts and not reading.nnodes:
            reading.nnodes = Sourced(
                len(reading.hosts.value), Phrase("hosts of {source}", source=reading.hosts.source)
            )
        _read_processes(reading, environment)
        require_equal(reading, "nnodes", environment, self.same_nnodes)
        require_equal(reading, "node_rank", environment, self.same_node_rank)
        reading.job_id = first_text(environment, self.job_id)
        reading.interface = first_text(environment, self.interface)
        reading.restart_count = lenient_count(environment, self.restart_count)
        reading.accelerators = lenient_count(environment, self.accelerators)
        own = (environment.text(name) for name in self.own_names)
        reading.own_names = frozenset(text.value for text in own if text)


def _read_processes(reading: Reading, environment: Environment) -> None:
    """Read WORLD_SIZE as processes if it is the number of nodes times that of processes per node.

    Users write all three, as torchrun's names suggest, on platforms whose own WORLD_SIZE counts nodes. RANK
    then is the node's rank, or that of its first process.
    """
    world = reading.nnodes
    if world is None or world.source != "WORLD_SIZE":
        return
    try:
        nodes = first_integer(environment, USER_NNODES, 1)
        each = environment.integer("NPROC_PER_NODE") if "NPROC_PER_NODE" in environment else None
    except TopologyError:  # invalid numbers are reported where they are read
        return
    if nodes is None or each is None or each.value < 2 or nodes.value * each.value != world.value:
        return
    source = Phrase(
        "{nodes_source}: WORLD_SIZE={world} counts processes, {nodes} × {each_source}={each}",
        nodes_source=nodes.source,
        world=world.value,
        nodes=nodes.value,
        each_source=each.source,
        each=each.value,
    )
    reading.nnodes, reading.nproc_per_node = Sourced(nodes.value, source), each
    rank = reading.node_rank
    if rank is not None and rank.source == "RANK" and rank.value >= nodes.value:
        if rank.value % each.value:
            reading.refuse(
                "node_rank",
                Phrase(
                    "RANK={rank} is neither the rank of one of {nodes} nodes nor that of the first of "
                    "{each} processes on a node",
                    rank=rank.value,
                    nodes=nodes.value,
                    each=each.value,
                ),
            )
            reading.node_rank = None
        else:
            reading.node_rank = Sourced(rank.value // each.value, Phrase("RANK ÷ NPROC_PER_NODE"))


def is_set(environment: Environment, pattern: str) -> bool:
    """Return whether a variable with this name or pattern is set."""
    if "*" not in pattern:
        return pattern in environment
    return any(fnmatchcase(name, pattern) for name in environment)


def first_count(environment: Environment, names: Names) -> Sourced[int] | None:
    """Return processes per node from the first variable that gives them.

    ``auto`` and its like mean "count the devices", as does 0, which platforms export without GPUs.
    """
    for name in names:
        text = environment.text(name)
        if text is None or text.value.lower() in COUNT_DEVICES:
            continue
        number = environment.integer(name)
        if number and number.value:
            return number
    return None


def first_hosts(environment: Environment, names: Names) -> Sourced[tuple[str, ...]] | None:
    """Return the first list of hosts that is set, in its order."""
    text = first_text(environment, names)
    return Sourced(split_hosts(text.value, text.source), text.source) if text else None


def require_equal(reading: Reading, name: str, environment: Environment, others: Names) -> None:
    """Add a problem if one of ``others`` is set and differs from the field's value."""
    value: Sourced[int] | None = getattr(reading, name)
    for other_name in others if value else ():
        try:
            other = environment.integer(other_name)
        except TopologyError as error:
            reading.add_problem(name, error)
            continue
        if value and other and value.value != other.value:
            reading.add_problem(name, disagreement(value, other))


def lenient_count(environment: Environment, names: Names) -> Sourced[int] | None:
    """Return a counter that is only reported: anything except a number counts as not set."""
    text = first_text(environment, names)
    if text is None or not (text.value.isascii() and text.value.isdigit() and len(text.value) <= 9):
        return None
    return Sourced(int(text.value), text.source)
