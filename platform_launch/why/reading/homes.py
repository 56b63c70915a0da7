"""On which host a rank runs, and which rank a process is, from lines that report no failure.

The sources are NCCL's start-up, line prefixes that name both a rank and a host, and this launcher's opening
event. Contradictory ones, such as those of two attempts, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from platform_launch.hostlist import short_name
from platform_launch.why.lines.line import NOWHERE, Line, Location
from platform_launch.why.lines.location_patterns import names_a_machine

_MOST = 100_000
_NCCL = re.compile(r"NCCL INFO .*\brank (\d{1,7}) nranks (\d{1,7})\b")
# What NCCL, Open MPI and UCX begin their lines with.
_PROCESS = re.compile(
    r"(?:^|[\s\[])(?P<host>[A-Za-z0-9][\w.-]{0,100}):0*(?P<pid>\d{1,10})(?::\d+ \[\d+\] |[\]:])"
)


@dataclass
class Homes:
    """The findings of one log.

    ``ranks`` holds the hosts by the kind of line that names them; ``size`` is the number of ranks of the
    largest communicator, since smaller ones have their own numbers; ``opened`` are the nodes that this
    launcher started on; ``processes`` are the ranks by host and process id, None for a process of several
    ranks.
    """

    ranks: dict[str, dict[int, Location]] = field(default_factory=dict)
    opened: dict[int, Location] = field(default_factory=dict)
    processes: dict[tuple[str, str], int | None] = field(default_factory=dict)
    size: int = 0

    def read(self, line: Line) -> bool:
        """Record what a line shows; return True if it shows nothing else."""
        if "NCCL INFO " in line.text and line.where.host is not None and (found := _NCCL.search(line.text)):
            self._read_nccl(line.where.host, int(found[1]), int(found[2]), line.text)
            return True
        if line.process.rank is not None and line.where.host is not None:
            self._add("prefixes", line.process.rank, line.where.host)
        return False

    def open(self, node: int, host: str, ranks: Iterable[int]) -> None:
        """Record the host that a launch began on, with its node and its ranks."""
        _agree(self.opened, node, Location(host=host))
        for rank in ranks:
            self._add("opened", rank, host)

    def merge(self, other: Homes) -> None:
        """Add the findings of another log."""
        if other.size > self.size:
            self.size = other.size
            self.ranks.pop("nccl", None)
        for kind, homes in other.ranks.items():
            if kind != "nccl" or other.size == self.size:
                for rank, home in homes.items():
                    _agree(self.ranks.setdefault(kind, {}), rank, home)
        for node, home in other.opened.items():
            _agree(self.opened, node, home)
        self.processes.update(other.processes)

    def of_rank(self, rank: int) -> Location:
        """Return the host of a rank; NOWHERE if it is not known."""
        homes_of_rank = [homes[rank] for homes in self.ranks.values() if rank in homes]
        # An address is another, less useful name of a host.
        named = sorted((home.host[0].isdigit(), home.host) for home in homes_of_rank if home.host)
        alike = {short_name(host) for is_address, host in named if is_address == named[0][0]}
        return Location(host=named[0][1]) if NOWHERE not in homes_of_rank and len(alike) == 1 else NOWHERE

    def of_process(self, host: str | None, shown: str) -> Location:
        """Return the host and the rank of the process that wrote a line."""
        for found in _PROCESS.finditer(shown):
            ran = [
                Location(host=on, rank=rank)
                for (on, pid), rank in self.processes.items()
                if pid == found["pid"] and on == (found["host"] or host or on) and rank is not None
            ]
            if len(ran) == 1:
                return ran[0]
        return NOWHERE

    def _add(self, kind: str, rank: int, host: str) -> None:
        if names_a_machine(host):
            _agree(self.ranks.setdefault(kind, {}), rank, Location(host=host))

    def _read_nccl(self, host: str, rank: int, size: int, text: str) -> None:
        if size > self.size:
            self.size = size
            self.ranks.pop("nccl", None)
            self.processes.clear()
        if size == self.size:
            self._add("nccl", rank, host)
            if process := _PROCESS.search(text):
                key = host, process["pid"]
                # One process may hold several GPUs, each of them a rank.
                self.processes[key] = rank if self.processes.get(key, rank) == rank else None


def _agree(homes: dict[int, Location], number: int, home: Location) -> None:
    """Add the host of a rank or node; contradictory ones are ignored."""
    if number in homes or len(homes) < _MOST:
        known = homes.setdefault(number, home)
        same = short_name(known.host or "") == short_name(home.host or "")
        homes[number] = known if same else NOWHERE
