"""From fingerprints to a verdict: may these nodes train together?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from platform_launch.console.languages import translate
from platform_launch.errors import NodesDisagreeError, TopologyError, shown_list
from platform_launch.plan.network_order import compare_orders
from platform_launch.rendezvous.fingerprint import ARGUMENT, Fingerprint
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.ranks import compact, describe_nodes, listed
from platform_launch.text import Phrase, columns, padded
from platform_launch.values import dataclass

# If these differ, training cannot work as intended. Any other difference is only a warning.
MUST_AGREE = frozenset(
    {
        "nodes announced",
        "processes per node",
        "world size",
        "platform",
        "launcher",
        "master port",
        "training config",
        "NCCL",
        "torch release",
    }
)
# Reported with a difference that is only a warning.
_REMARKS = {
    "script": Phrase("nearly always a mistake: each node runs the file it has"),
    "program": Phrase("nearly always a mistake: each node runs its own version"),
}
# What to do about a difference that refuses the start.
_HINT = Phrase("use the same image, command and variables on every node")
_HINTS = {
    "processes per node": Phrase(
        "use the same image, command and number of GPUs on every node; replace a node that lost a GPU"
    ),
}
_MOST_PATHS = 4
LARGEST_CLOCK_OFFSET_S = 2.0


@dataclass(frozen=True)
class Difference:
    """A fact in which nodes differ: each value with its ranks, the most common first."""

    name: str
    must_agree: bool
    values: tuple[tuple[str, tuple[int, ...]], ...]

    def describe(self) -> str:
        """Return it as one line."""
        values = listed(
            [
                Phrase("{value} on {nodes}", value=value, nodes=describe_nodes(ranks))
                for value, ranks in self.values
            ],
        )
        if self.name not in _REMARKS:
            return Phrase("{name}: {values}", name=Phrase(self.name), values=values)
        return Phrase(
            "{name}: {values} ({remark})", name=Phrase(self.name), values=values, remark=_REMARKS[self.name]
        )


@dataclass(frozen=True)
class RunRefusal(Message):
    """The job cannot start, perhaps because of one ``node``; every node exits with this code."""

    exit_code: int
    reason: str
    hint: str = ""
    node: int | None = None


@dataclass(frozen=True)
class StartVerdict:
    """The result; ``refusal`` is None if the nodes may start."""

    refusal: RunRefusal | None
    warnings: tuple[str, ...]
    differences: tuple[Difference, ...]


def judge(nodes: Sequence[Fingerprint], clock_offsets_s: Mapping[int, float]) -> StartVerdict:
    """Judge all nodes of a job. ``clock_offsets_s`` is each node's clock minus that of node 0."""
    found = differences(nodes)
    cut_off = [node for node in nodes if node.master_port_problem]
    warnings = (
        *(difference.describe() for difference in found if not difference.must_agree),
        *_clock_warnings(clock_offsets_s),
        *_order_warnings(nodes),
    )
    broken = [difference for difference in found if difference.must_agree]
    refusal = None
    if cut_off:
        refusal = RunRefusal(
            TopologyError.exit_code,
            listed(
                [
                    Phrase(
                        "node {rank}, {place}: {problem}",
                        rank=node.node_rank,
                        place=node.place,
                        problem=node.master_port_problem,
                    )
                    for node in cut_off
                ],
            ),
            "let the nodes reach MASTER_PORT on node 0 too (firewall, security group, network policy)",
        )
    elif broken:
        refusal = RunRefusal(
            NodesDisagreeError.exit_code,
            Phrase(
                "the nodes disagree: {differences}", differences=listed([one.describe() for one in broken])
            ),
            next((_HINTS[one.name] for one in broken if one.name in _HINTS), _HINT),
        )
    return StartVerdict(refusal, warnings, found)


def differences(nodes: Iterable[Fingerprint]) -> tuple[Difference, ...]:
    """Return the facts in which the nodes differ, those that must agree first."""
    nodes = list(nodes)
    found = []
    for name in dict.fromkeys(name for node in nodes for name in node.facts):
        ranks: dict[str, list[int]] = defaultdict(list)
        for node in nodes:
            ranks[
                node.facts.get(name, Phrase("not set") if name.startswith(("$", ARGUMENT)) else "none")
            ].append(node.node_rank)
        if not all(node.agrees_in(name, nodes[0]) for node in nodes):
            by_frequency = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
            values = tuple(
                (f"{value}{_where(name, of_value, nodes)}", tuple(sorted(of_value)))
                for value, of_value in by_frequency
            )
            found.append(Difference(name, name in MUST_AGREE, values))
    return tuple(sorted(found, key=lambda difference: not difference.must_agree))


def _where(name: str, ranks: Iterable[int], nodes: Iterable[Fingerprint]) -> str:
    """Return the path of the file that a fact hashes on these nodes, in brackets; empty for other facts."""
    there = [node for node in nodes if node.node_rank in ranks and name in node.paths]
    paths = dict.fromkeys(node.paths[name] for node in there)
    return f" ({shown_list(paths, _MOST_PATHS)})" if paths else ""


def _clock_warnings(offsets_s: Mapping[int, float]) -> list[str]:
    wrong = {rank: offset for rank, offset in offsets_s.items() if abs(offset) > LARGEST_CLOCK_OFFSET_S}
    if not wrong:
        return []
    worst = max(wrong, key=lambda rank: abs(wrong[rank]))
    warning = Phrase(
        "clock: more than {limit:g} s from node 0's on {nodes} (node {worst}: {offset:+.1f} s): times "
        "in logs of different nodes cannot be compared",
        nodes=describe_nodes(wrong),
        limit=LARGEST_CLOCK_OFFSET_S,
        worst=worst,
        offset=wrong[worst],
    )
    return [warning]


def _order_warnings(nodes: Iterable[Fingerprint]) -> list[str]:
    by_rank = sorted(nodes, key=lambda node: node.node_rank)
    found = compare_orders(node.network for node in by_rank)
    return [found.warning] if found is not None and found.warning is not None else []


def table(found: Sequence[Difference], *, width: int = 96) -> list[str]:
    """Return the lines of a table of the differences; empty if there are none."""
    if not found:
        return []
    rows = [tuple(map(translate, ("differs", "must agree", "value", "nodes")))]
    for difference in found:
        for index, (value, ranks) in enumerate(difference.values):
            first = index == 0
            name = translate(difference.name) if first else ""
            must = translate("yes" if difference.must_agree else "no") if first else ""
            rows.append((name, must, value, compact(ranks)))
    widths = [min(max(columns(row[column]) for row in rows), 44) for column in range(3)]
    return [
        "  ".join(padded(cut(cell, size), size) for cell, size in zip(row, widths, strict=False))
        + f"  {cut(row[3], max(width - sum(widths) - 6, 12))}"
        for row in rows
    ]


def cut(text: str, longest: int) -> str:
    """Shorten a text to a number of columns."""
    if columns(text) <= longest:
        return text
    while columns(text) >= longest:
        text = text[:-1]
    return f"{text}…"
