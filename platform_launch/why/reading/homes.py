"""On which host a rank runs, and which rank a process is: told by lines that say nothing of a failure.

NCCL's start-up, the lists of launchers, maps of MPI and the sentences in which programs greet; and where a
log has both before a line, its prefixes. Two that contradict each other, as those of two attempts, tell
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from platform_launch.errors import TopologyError
from platform_launch.hostlist import expand, expand_counts, short_name
from platform_launch.why.lines.host_names import names_a_machine
from platform_launch.why.lines.line import NOWHERE, Line, Location

# What tells of all ranks at once.
_LISTS = frozenset(("command", "deepspeed", "map"))
_MOST = 100_000
_DIGITS = 5
# What says on which host a rank runs stands at a line's beginning.
_WITHIN = 300

_NCCL = re.compile(r"NCCL INFO .*\brank (\d{1,7}) nranks (\d{1,7})\b")
# What NCCL, Open MPI and UCX begin their lines with, and Ray, which leaves its head's address out.
_PROCESS = re.compile(
    r"(?:^|[\s\[])(?P<host>[A-Za-z0-9][\w.-]{0,100}):0*(?P<pid>\d{1,10})(?::\d+ \[\d+\] |[\]:])"
    r"|\([^()]{0,80}\bpid=(?P<ray_pid>\d{1,10})(?:, ip=(?P<ip>[\w.:]+))?[,)]"
)
# torch names both ends of a socket of its store, the own one first.
_SOCKET = re.compile(r"\bSocketImpl\(fd=-?\d+, addr=\[(?:::ffff:)?([\w.:-]+)\]:\d+")
# DeepSpeed's runner lists the ranks of each host.
_DEEPSPEED = re.compile(r"\bglobal_rank_mapping=defaultdict\(<class 'list'>, \{(.*)\}\)")
_OF_A_HOST = re.compile(r"'(?:[\w.-]{1,60}@)?([\w.:-]{1,253})': \[([\d, ]*)\]")
# torchrun's agents print the outcome of the rendezvous over some lines, this one the last.
_GLOBAL_RANKS = re.compile(r"\bglobal_ranks=\[(\d[\d, ]*)\]")
_GROUP_RANK = re.compile(rb"\bgroup_rank=(\d{1,6})\b")
_MASTER = re.compile(rb"\bmaster_addr=([\w.:-]+)")
_LINES_OF_AN_OUTCOME = 12
_JOINED = re.compile(r"The node '([\w.-]+)_\d+_\d+' has joined round \d+ of .* as rank (\d{1,6}) in a world")
# Open MPI's map of the job, and where it bound processes.
_MAP_NODE = re.compile(r"\bData for node: ([\w.-]+)")
_MAP_RANK = re.compile(r"\bProcess (?:OMPI )?jobid: \S+ .*?\bProcess rank: (\d{1,7})\b")
_BOUND = re.compile(r"\[([\w.-]+):(\d+)\] (?:MCW rank|Rank) (\d{1,7}) (?:is )?(?:not )?bound\b")
_INTEL = re.compile(r"\bMPI startup\(\): (\d{1,7}) +(\d{1,10}) +([A-Za-z][\w.-]*) +\S")
_RAY = re.compile(r"\bip=([\w.:]+), pid=(\d+)\) world_rank=(\d{1,7})\b")
# A training that says who it is.
_NAME = r"(?P<host>[A-Za-z0-9][\w.-]*[A-Za-z_.-][\w.-]*|[A-Za-z][\w.-]*)"
_RANK = (
    r"(?<![\w-])(?<!local )(?<!node )(?<!group )(?<!machine )(?:(?:global|world)[_ ])?rank"
    r"(?:[=:] ?| )\[?(?P<rank>\d{1,7})(?: ?(?:/|of) ?\d{1,7})?\]?"
)
_FIELDS = r"(?:[,;| ]{1,3}[\w ]{1,24}[=:] ?[\w./:-]{1,60}){0,6}[,;|() ]{1,3}"
_HOST = rf"\b(?:host_?(?:name)?|node_?name)(?: ?= ?| ?: ?){_NAME}"
_GREETING = re.compile(
    rf"{_RANK}{_FIELDS}(?:(?:is )?(?:running )?on )?{_HOST}(?=$|[\s,;|)\]])"
    rf"|{_HOST.replace('<host>', '<host_first>')}{_FIELDS}{_RANK.replace('<rank>', '<rank_then>')}(?![\w.])",
    re.I,
)
_HELLO = re.compile(
    r"(?i:\bhello\b.{0,20}? from) (?:rank|process) (?P<rank>\d{1,7})(?: (?:of|out of) \d{1,7}(?: \w+)?)?,?"
    rf"(?: thread \d{{1,5}},)? on (?:host |node )?{_NAME}(?=$|[\s,;!|:)\]])"
)
_ON_HOST = re.compile(
    rf"{_RANK}\)? ?(?:is |was )?(?:running |started |launched |alive |up )?"
    rf"on (?:host|machine|node) {_NAME}(?=$|[\s,;|:)\]])",
    re.I,
)
# Each of these sentences holds one of these words.
_GREETING_WORDS = ("hello", "host", "machine", "node")
# Where the host may be that of the store, which all ranks name.
_OF_ANOTHER = re.compile(r"port\b|master|addr|server|store|tcp:|endpoint|rdzv|connect", re.I)
# The hosts of Slurm's job, and how many tasks it starts on each.
_NODES = re.compile(
    r"(?<![A-Za-z])(?:SLURM_(?:JOB_|STEP_)?)?NODE_?LIST(?: ?= ?|: ?)[\"']?([A-Za-z][\w.,\[\]-]{0,2000})", re.I
)
_TASKS_OF_NODES = re.compile(r"\bSLURM_(?:STEP_|N)?TASKS_PER_NODE ?[=:] ?[\"']?(\d[\d(x),]*)")
_TASKS = re.compile(r"(?:\bSLURM_N(?:TASKS|PROCS) ?[=:] ?|\bNumTasks=)(\d{1,7})\b")
# The command that starts processes on listed hosts, one after the other unless it says otherwise.
_COMMAND = re.compile(r"\b(?:horovodrun|mpirun|mpiexec)\b.{0,300}? -{1,2}(?:H|hosts?) (?P<hosts>[\w.:,-]+).*")
_PROCESSES = re.compile(r" -{1,2}np? (\d{1,6})\b")
_OTHERWISE = re.compile(
    r" -{1,2}(?:map-by (?!slot)|rank-by (?!slot)|bynode\b|npernode\b|ppn\b|N |rankfile\b|rf )"
)


@dataclass
class Homes:
    """What one log tells of it.

    ``ranks`` holds what each kind of line says, by the kind's name; ``size`` is how many ranks the largest
    communicator seen has, as smaller ones count theirs anew; ``nodes`` are torchrun's, which counts them by
    itself, ``opened`` those of launches of this launcher; ``processes`` are hosts and process ids.
    ``hosts`` are those of Slurm's job, ``counts`` how many tasks they have, ``total`` all of them.
    """

    ranks: dict[str, dict[int, Location]] = field(default_factory=dict)
    nodes: dict[int, Location] = field(default_factory=dict)
    opened: dict[int, Location] = field(default_factory=dict)
    processes: dict[tuple[str, str], int | None] = field(default_factory=dict)
    size: int = 0
    world: int = 0
    hosts: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    total: int = 0
    _map_node: str = ""

    def read(self, line: Line, preceding: Callable[[int], list[bytes]]) -> bool:
        """Take what a line says; return True if that is all it says."""
        text, rank = line.text, line.process.rank
        if "NCCL INFO " in text and line.where.host is not None and (home := _NCCL.search(text)):
            self._read_nccl(line.where.host, int(home[1]), int(home[2]), text)
            return True
        if rank is not None and line.where.host is not None:
            self.live("prefixes", rank, line.where.host)
        if rank is not None and "addr=[" in text and (socket := _SOCKET.search(text)):
            self.live("sockets", rank, socket[1])
        lower = text.lower()
        if "rank" in lower:
            self._read_ranks(line, preceding)
        if "node" in lower or "slurm" in lower:
            self._read_nodes(text)
        if "MPI startup" in text and (found := _INTEL.search(text)):
            self._run(found[3], found[2], int(found[1]))
        if " -" in text and (found := _COMMAND.search(text)) and not _OTHERWISE.search(found[0]):
            self._read_command(found["hosts"].split(","), _PROCESSES.search(found[0]))
        return False

    def live(self, kind: str, rank: int, host: str) -> None:
        """Take note of the host of a rank."""
        if names_a_machine(host):
            _agree(self.ranks.setdefault(kind, {}), rank, Location(host=host))

    def stand(self, node: int, host: str, ranks: Iterable[int] = ()) -> None:
        """Take note of the host of a node of the job, and of its ranks."""
        if names_a_machine(host):
            _agree(self.nodes, node, Location(host=host))
        for rank in ranks:
            _agree(self.ranks.setdefault("nodes", {}), rank, Location(node=node))

    def open(self, node: int, host: str, ranks: Iterable[int]) -> None:
        """Take note of the host that a launch began on, of its node and its ranks."""
        _agree(self.opened, node, Location(host=host))
        for rank in ranks:
            self.live("opened", rank, host)

    def merge(self, other: Homes) -> None:
        """Add what another log tells."""
        if other.size > self.size:
            self.size = other.size
            self.ranks.pop("nccl", None)
        for kind, homes in other.ranks.items():
            if kind != "nccl" or other.size == self.size:
                for rank, home in homes.items():
                    _agree(self.ranks.setdefault(kind, {}), rank, home)
        for mine, others in ((self.nodes, other.nodes), (self.opened, other.opened)):
            for node, home in others.items():
                _agree(mine, node, home)
        self.processes.update(other.processes)
        if self.hosts and other.hosts and self.hosts != other.hosts:
            self.hosts = ()
        else:
            self.hosts = self.hosts or other.hosts
        self.counts = self.counts or other.counts
        self.total = self.total or other.total

    def of_rank(self, rank: int) -> Location:
        """Return the host of a rank, or else the number of its node; nowhere if that is not known.

        Slurm's tasks are the ranks of the ``world`` where it started one for each.
        """
        told = [homes[rank] for homes in self.ranks.values() if rank in homes]
        told = [self.of_node(home.node) if home.node is not None else home for home in told]
        if not told and len(self.hosts) < self.total == self.world:
            return self.of_task(rank)
        # An address is another name of a host, and less of one.
        named = sorted((home.host[0].isdigit(), home.host) for home in told if home.host)
        alike = {short_name(host) for is_address, host in named if is_address == named[0][0]}
        if NOWHERE in told or len(alike) > 1:
            return NOWHERE
        return Location(host=named[0][1]) if named else next(iter(told), NOWHERE)

    def of_node(self, node: int) -> Location:
        """Return the host of a node, else its number."""
        home = self.nodes.get(node, NOWHERE)
        return home if home != NOWHERE else Location(node=node)

    def of_task(self, task: int) -> Location:
        """Return the host on which Slurm starts a task, one after the other as it does by default."""
        each, rest = divmod(self.total, len(self.hosts) or 1)
        counts = self.counts * len(self.hosts) if len(self.counts) == 1 else self.counts
        counts = counts or ((each,) * len(self.hosts) if not rest else ())
        first = 0
        for host, count in zip(self.hosts, counts, strict=False):
            if first <= task < first + count:
                return Location(host=host)
            first += count
        return NOWHERE

    def of_process(self, host: str | None, shown: str) -> Location:
        """Return the host and the rank of the process that wrote a line."""
        for found in _PROCESS.finditer(shown):
            pid, named = found["pid"] or found["ray_pid"], found["host"] or found["ip"] or host
            ran = [
                Location(host=on, rank=rank)
                for (on, one), rank in self.processes.items()
                if one == pid and on == (named or on) and rank is not None
            ]
            if len(ran) == 1:
                return ran[0]
        return NOWHERE

    def alone_on(self, host: str) -> Location:
        """Return the rank that alone runs on a host, as what lists all ranks says."""
        found = NOWHERE
        for kind, homes in self.ranks.items():
            here = [rank for rank, home in homes.items() if short_name(home.host or "") == short_name(host)]
            whole = kind in _LISTS or (kind == "nccl" and len(homes) == self.size)
            if whole and len(here) > 1:
                return NOWHERE
            if whole and here and len(homes) > 1:
                found = Location(rank=here[0])
        return found

    @property
    def only(self) -> Location:
        """The host of a job that has a single one."""
        return Location(host=self.hosts[0]) if len(self.hosts) == 1 else NOWHERE

    def _read_nccl(self, host: str, rank: int, size: int, text: str) -> None:
        if size > self.size:
            self.size = size
            self.ranks.pop("nccl", None)
            self.processes.clear()
        if size == self.size:
            self.live("nccl", rank, host)
            if (process := _PROCESS.search(text)) and process["pid"]:
                key = host, process["pid"]
                # One process may hold several GPUs, each a rank.
                self.processes[key] = rank if self.processes.get(key, rank) == rank else None

    def _run(self, host: str, process: str, rank: int) -> None:
        self.live("map", rank, host)
        if len(self.processes) < _MOST:
            self.processes[host, process.lstrip("0")] = rank

    def _read_ranks(self, line: Line, preceding: Callable[[int], list[bytes]]) -> None:
        text, short = line.text, line.text[:_WITHIN]
        if found := _DEEPSPEED.search(text):
            for host, ranks in _OF_A_HOST.findall(found[1]):
                for rank in _numbers(ranks):
                    self.live("deepspeed", rank, host)
        elif found := _GLOBAL_RANKS.search(text):
            self._read_outcome(_numbers(found[1]), line, preceding(_LINES_OF_AN_OUTCOME))
        elif found := _JOINED.search(text):
            self.stand(int(found[2]), found[1])
        elif (found := _MAP_RANK.search(short)) and self._map_node:
            self.live("map", int(found[1]), self._map_node)
        elif (found := _BOUND.search(text)) or (found := _RAY.search(text)):
            self._run(found[1], found[2], int(found[3]))
        elif (found := _greeting_in(short)) is not None:
            named = {name.partition("_")[0]: value for name, value in found.groupdict().items() if value}
            self.live("greeting", int(named["rank"]), named["host"].rstrip("."))

    def _read_outcome(self, ranks: Sequence[int], line: Line, above: Sequence[bytes]) -> None:
        """Read what the agent of a node tells of its ranks, if the lines above are its own."""
        group = next((int(found[1]) for found in map(_GROUP_RANK.search, above) if found), -1)
        master = next((found[1].decode() for found in map(_MASTER.search, above) if found), "localhost")
        if group < 0 or not ranks or ranks[0] != group * len(ranks):
            return
        self.stand(group, line.where.host or (master if group == 0 else "localhost"), ranks)

    def _read_nodes(self, text: str) -> None:
        if found := _MAP_NODE.search(text):
            self._map_node = found[1]
        try:
            if found := _NODES.search(text):
                self.hosts = expand(found[1].rstrip(".,"))
            if found := _TASKS_OF_NODES.search(text):
                self.counts = expand_counts(found[1])
        except TopologyError:
            return
        if found := _TASKS.search(text):
            self.total = int(found[1])

    def _read_command(self, hosts: Sequence[str], asked: re.Match[str] | None) -> None:
        """Read the hosts that mpirun fills one after the other, each with as many ranks as it says.

        Without numbers it is known only of one rank a host.
        """
        if not all(":" in host for host in hosts) and (asked is None or int(asked[1]) != len(hosts)):
            return
        first = 0
        for host in hosts:
            name, _, slots = host.partition(":")
            count = int(slots) if slots.isdecimal() and len(slots) <= _DIGITS else 1
            for rank in range(first, first + count):
                self.live("command", rank, name)
            first += count


def _greeting_in(text: str) -> re.Match[str] | None:
    """Return what a training says of itself, unless it speaks of its store."""
    small = text.lower()
    if not any(word in small for word in _GREETING_WORDS) or _OF_ANOTHER.search(text):
        return None
    return _GREETING.search(text) or _ON_HOST.search(text) or _HELLO.search(text)


def _agree(homes: dict[int, Location], number: int, home: Location) -> None:
    """Add what is told of a rank or node; two that contradict each other tell nothing."""
    if number in homes or len(homes) < _MOST:
        known = homes.setdefault(number, home)
        same = short_name(known.host or "") == short_name(home.host or "") and known.node == home.node
        homes[number] = known if same else NOWHERE


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace(",", " ").split() if len(part) <= _DIGITS]
