"""From what all nodes found together to findings that name a node or a link. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from platform_launch.doctor.cluster.document import Document, Outcome, Seat
from platform_launch.doctor.cluster.pairing import is_bad, reference_gbps
from platform_launch.doctor.finding import Finding, error, info, warning

Seats = Mapping[int, Seat]

_ISOLATED = "check its cable, firewall and network policy: the other nodes reach each other"


def judge(document: Document) -> list[Finding]:
    """Return the findings of a meeting; every node that read the document returns the same."""
    return [
        *_attendance(document),
        *_matrix(document),
        *_collectives(document),
        *_measured(document.outcomes),
    ]


def _attendance(document: Document) -> Iterator[Finding]:
    for rank in document.absent:
        yield error(
            "node-absent",
            f"node {rank} of {len(document.seats) + len(document.absent)} did not come",
            f"node {rank}",
            "look at that node's log: was it started, does it reach node 0? --timeout waits longer",
        )
    for rank, host in document.duplicates.items():
        yield error(
            "node-duplicate",
            f"two nodes have rank {rank}: {document.seats[rank].host} and {host}",
            f"node {rank}",
            "give each node a rank of its own",
        )
    for rank in document.silent:
        yield error(
            "node-silent",
            f"{_place(rank, document.seats)} came, and then stopped answering",
            f"node {rank}",
            "look at that node: it hangs, was cut off, or its doctor was killed",
        )


def _matrix(document: Document) -> Iterator[Finding]:
    """Name a node that most others do not reach, or that reaches nobody, once; other gaps pair by pair."""
    reach = document.reach
    gaps = {(a, b): reason for a, found in reach.items() for b, reason in found.items()}
    named = set()
    others = len(reach) - 1
    for rank in reach:
        to = [reason for (_, b), reason in gaps.items() if b == rank]
        away = [reason for (a, _), reason in gaps.items() if a == rank]
        if others > 1 and max(len(to), len(away)) > others / 2:
            named.add(rank)
            place = _place(rank, document.seats)
            if len(to) >= len(away):
                what = f"{place} is not reached by {len(to)} of {others} other nodes, at {to[0]}"
            else:
                what = f"{place} does not reach {len(away)} of {others} other nodes, such as {away[0]}"
            yield error("node-unreachable", what, f"node {rank}", _ISOLATED)
    for (a, b), reason in gaps.items():
        if a not in named and b not in named:
            yield error(
                "link-broken",
                f"{_place(a, document.seats)} does not reach {_place(b, document.seats)} at {reason}",
                f"node {a} → node {b}",
                "let the nodes reach each other on all ports (firewall, security group, network policy)",
            )
    for rank, reason in document.master_port.items():
        if rank not in named:
            yield error(
                "node-unreachable",
                f"{_place(rank, document.seats)} does not get through to MASTER_PORT at {reason}",
                f"node {rank} → node 0",
                "open MASTER_PORT on node 0 (firewall, security group, network policy)",
            )


def _collectives(document: Document) -> Iterator[Finding]:
    """Blame a node that is bad with all its partners while these do well with others; else the pair."""
    pairs = [outcome for outcome in document.outcomes if len(outcome.group) == 2]
    bad = [outcome for outcome in pairs if is_bad(outcome, pairs)]
    cleared = {rank for outcome in pairs if outcome not in bad for rank in outcome.group}
    blamed: dict[int, list[Outcome]] = {}
    for outcome in bad:
        guilty = [rank for rank in outcome.group if rank not in cleared]
        if len(guilty) == 1:
            blamed.setdefault(guilty[0], []).append(outcome)
    for rank, outcomes in blamed.items():
        yield _of_node(rank, outcomes, pairs, document.seats)
    for outcome in bad:
        if not blamed.keys() & set(outcome.group):
            yield _of_link(outcome, pairs, document.seats)
    for outcome in document.outcomes:
        if len(outcome.group) > 2 and outcome.problem:
            yield error(
                "collective-wrong" if outcome.wrong else "collective-failed",
                f"each pair does well, but a collective of all {len(outcome.group)} nodes does not: "
                f"{outcome.problem}",
                "all nodes",
                "try half of the nodes at a time; look for a limit on connections or open files",
            )


def _of_node(rank: int, outcomes: Sequence[Outcome], pairs: Sequence[Outcome], seats: Seats) -> Finding:
    partners = ", ".join(f"node {r}" for outcome in outcomes for r in outcome.group if r != rank)
    failed = [outcome for outcome in outcomes if outcome.problem]
    if failed:
        return error(
            _failure_id(failed[0]),
            f"{_place(rank, seats)} fails with {partners}, which do well with others: {failed[0].problem}",
            f"node {rank}",
            "take this node out, or look there first",
        )
    slowest = min(outcome.bandwidth_gbps for outcome in outcomes)
    # With an odd number of nodes, or where others failed, a node has met one partner only.
    once = " (measured once: it may be the link between them)" if len(outcomes) == 1 else ""
    return warning(
        "node-slow",
        f"{_place(rank, seats)} reaches {_rate(slowest)} with {partners}{once}, other pairs "
        f"{_rate(reference_gbps(pairs))}",
        f"node {rank}",
        "check its cable, port and NIC rate (ethtool, ibstat), or take it out: all wait for the slowest",
    )


def _of_link(outcome: Outcome, pairs: Sequence[Outcome], seats: Seats) -> Finding:
    a, b = outcome.group
    both = f"{_place(a, seats)} and {_place(b, seats)}"
    if outcome.problem:
        finding_id = "collective-wrong" if outcome.wrong else "link-broken"
        hint = "the same two may do well on another network: look at NCCL_SOCKET_IFNAME, GIDs and firewalls"
        return error(finding_id, f"{both} fail together: {outcome.problem}", f"node {a} ↔ node {b}", hint)
    return warning(
        "link-slow",
        f"{both} reach {_rate(outcome.bandwidth_gbps)} together, other pairs {_rate(reference_gbps(pairs))}",
        f"node {a} ↔ node {b}",
        "both do well with others, or neither was tried with one: look at the switches between them",
    )


def _measured(outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    for whole in (False, True):
        good = [o for o in outcomes if not o.problem and (len(o.group) > 2) is whole]
        if not good:
            continue
        rates = [outcome.bandwidth_gbps for outcome in good]
        what = f"{len(good)} pair(s) of nodes" if not whole else f"all {len(good[0].group)} nodes together"
        spread = f" (slowest {_rate(min(rates))}, fastest {_rate(max(rates))})" if len(rates) > 1 else ""
        latency_us = statistics.median(outcome.latency_us for outcome in good)
        yield info(
            "collective-measured",
            f"{what}: {_rate(statistics.median(rates))}{spread}, latency {latency_us:.0f} µs; right numbers",
            "all nodes" if whole else "pairs",
        )


def _failure_id(outcome: Outcome) -> str:
    return "collective-wrong" if outcome.wrong else "collective-failed"


def _rate(gbps: float) -> str:
    return f"{gbps:.1f} Gbit/s" if gbps >= 1 else f"{gbps * 1000:.0f} Mbit/s"


def _place(rank: int, seats: Seats) -> str:
    seat = seats.get(rank)
    return f"node {rank}" if seat is None else f"node {rank} ({seat.host}, {seat.address})"
