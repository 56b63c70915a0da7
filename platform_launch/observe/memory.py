"""The peak memory of a node's processes, and how busy its GPUs are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from platform_launch.text import Phrase, joined

# One line per node up to this number; otherwise only the node that held the most.
_MOST_NODES = 8


@dataclass(frozen=True)
class MemoryHeld:
    """In GiB: the processes of a node together, and each GPU by its index.

    ``gpus_busy`` is the utilization of each GPU in percent, the mean so far; ``gpus_busy_now`` that of the
    last minute.
    """

    processes_gib: float = 0.0
    gpus_gib: Mapping[int, float] = field(default_factory=dict)
    gpus_busy: Mapping[int, float] = field(default_factory=dict)
    gpus_busy_now: Mapping[int, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.processes_gib or self.gpus_gib)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "processes_gib": round(self.processes_gib, 3),
            "gpus_gib": {str(index): round(gib, 3) for index, gib in sorted(self.gpus_gib.items())},
            "gpus_busy_percent": {
                str(index): round(percent, 1) for index, percent in sorted(self.gpus_busy.items())
            },
        }

    def describe(self) -> str:
        """Return it as one line; GPUs that held the same are named together."""
        return Phrase("processes {processes}{gpus}", processes=self.processes, gpus=self.gpus)

    @property
    def processes(self) -> str:
        """The memory of the processes, with its unit."""
        return _shown(self.processes_gib)

    @property
    def gpus(self) -> str:
        """The memory and utilization of the GPUs, after a semicolon; empty without GPUs."""
        alike: dict[str, list[int]] = {}
        for index, gib in sorted(self.gpus_gib.items()):
            alike.setdefault(_shown(gib), []).append(index)
        one, several = Phrase("; GPU {indices} {amount}"), Phrase("; GPU {indices} each {amount}")
        parts = [
            Phrase(several if len(indices) > 1 else one, indices=joined(indices), amount=amount)
            for amount, indices in alike.items()
        ]
        if self.gpus_busy:
            parts.append(_busy(Phrase("; GPUs {percent:.0f}% busy on average{idle}"), self.gpus_busy))
        return joined(parts, "")

    @property
    def busy_now(self) -> Phrase | None:
        """The current utilization of the GPUs; None if unknown."""
        return _busy("GPUs {percent:.0f}% busy now{idle}", self.gpus_busy_now) if self.gpus_busy_now else None


def memory_lines(nodes: Iterable[tuple[str, MemoryHeld]]) -> list[str]:
    """Return a line with the peak of each node; if there are many nodes, only the one that held the most."""
    known = [(name, held) for name, held in nodes if held]
    if len(known) <= _MOST_NODES:
        return [
            line
            for name, held in known
            for line in (
                Phrase("peak memory of {node}: {held}", node=name, held=held.describe()),
                held.busy_now and Phrase("{node}: {busy}", node=name, busy=held.busy_now),
            )
            if line
        ]
    most = max(known, key=lambda one: (max(one[1].gpus_gib.values(), default=0.0), one[1].processes_gib))
    return [
        Phrase(
            "peak memory of {node}, the most of {count} nodes: {held}",
            node=most[0],
            count=len(known),
            held=most[1].describe(),
        )
    ]


def _busy(words: str, percents: Mapping[int, float]) -> Phrase:
    """Return the mean utilization, and the GPU that is far less busy than the others."""
    mean = sum(percents.values()) / len(percents)
    index, least = min(percents.items(), key=lambda one: one[1])
    idle = Phrase(", GPU {index} only {least:.0f}%", index=index, least=least) if least < mean / 2 else ""
    return Phrase(words, percent=mean, idle=idle)


def _shown(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"
