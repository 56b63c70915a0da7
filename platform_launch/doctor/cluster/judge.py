"""Turns the results of all nodes into findings that name a node or a link. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from platform_launch.doctor.checks.planned import rank_order
from platform_launch.doctor.cluster.document import Document, Endpoint, Measurement
from platform_launch.doctor.cluster.pairing import is_bad, reference_gbps
from platform_launch.doctor.finding import Finding, error, info, warning
from platform_launch.hostlist import bracketed
from platform_launch.plan.network_order import compare_orders
from platform_launch.rendezvous.ranks import compact
from platform_launch.rendezvous.verdict import LARGEST_CLOCK_OFFSET_S
from platform_launch.text import Phrase, joined

Endpoints = Mapping[int, Endpoint]

_NAME_IT = Phrase(
    "correct MASTER_ADDR, or let its name resolve on that node (name server, /etc/hosts; in Kubernetes a "
    "headless service)"
)
_LARGE_LOST = Phrase(
    "use one MTU on all links in between (ip link on the nodes; the ports of the switches; "
    "VLANs, tunnels and overlays need some of it), and test it: ping -M do -s 1472 NODE, 8972 "
    "for jumbo frames"
)
_ISOLATED = Phrase("check its cable, firewall and network policy: the other nodes reach each other")


def judge(document: Document) -> list[Finding]:
    """Return the findings; every node that read the document returns the same."""
    return [
        *_presence(document),
        *_matrix(document),
        *_packet_sizes(document.endpoints),
        *_clocks(document.clock_offsets_s),
        *_rank_order(document),
        *_collectives(document),
        *_measured(document.measurements),
    ]


def _presence(document: Document) -> Iterator[Finding]:
    nnodes = len({**document.endpoints, **document.foreign}) + len(document.absent)
    for rank in document.absent:
        yield error(
            "node-absent",
            Phrase("node {rank} of {nnodes} did not connect", rank=rank, nnodes=nnodes),
            f"node {rank}",
            "check that node's log: was it started, can it reach node 0? --timeout waits longer",
        )
    for rank, host in document.duplicates.items():
        yield error(
            "node-duplicate",
            Phrase(
                "two nodes have rank {rank}: {first} and {second}",
                rank=rank,
                first=document.endpoints[rank].host,
                second=host,
            ),
            f"node {rank}",
            "give each node its own rank",
        )
    for rank, difference in document.foreign.items():
        yield error(
            "node-foreign",
            difference,
            f"node {rank}",
            "use one image, or one version of platform-launch, on all nodes",
        )
    for rank in document.silent:
        yield error(
            "node-silent",
            Phrase("{node} connected, then stopped answering", node=_place(rank, document.endpoints)),
            f"node {rank}",
            "check that node: it hangs, was cut off, or its doctor was killed",
        )


def _matrix(document: Document) -> Iterator[Finding]:
    """Report a node that most others cannot reach, or that reaches nobody, once; other gaps pair by pair."""
    away = {
        a: {b: gap for gap in gaps for b in gap.ranks if b in document.endpoints}
        for a, gaps in document.reach.items()
    }
    to: dict[int, list[int]] = {}
    for a, found in away.items():
        for b in found:
            to.setdefault(b, []).append(a)

    def at(a: int, b: int) -> Phrase:
        endpoint = document.endpoints[b]
        return way(endpoint.address, endpoint.port, away[a][b].problem)

    named = set()
    others = len(away) - 1
    for rank, found in away.items():
        comers = to.get(rank, [])
        if others > 1 and max(len(comers), len(found)) > others / 2:
            named.add(rank)
            place = _place(rank, document.endpoints)
            if len(comers) >= len(found):
                what = Phrase(
                    "{count} of {others} other nodes cannot reach {node}: {way}",
                    node=place,
                    count=len(comers),
                    others=others,
                    way=at(comers[0], rank),
                )
                only_large = all(away[a][rank].only_large for a in comers)
            else:
                what = Phrase(
                    "{node} cannot reach {count} of {others} other nodes, e.g. {way}",
                    node=place,
                    count=len(found),
                    others=others,
                    way=at(rank, next(iter(found))),
                )
                only_large = all(gap.only_large for gap in found.values())
            yield error("node-unreachable", what, f"node {rank}", _LARGE_LOST if only_large else _ISOLATED)
    for a, found in away.items():
        for b, gap in found.items():
            if a not in named and b not in named:
                yield error(
                    "link-broken",
                    Phrase(
                        "{node} cannot reach {other}: {way}",
                        node=_place(a, document.endpoints),
                        other=_place(b, document.endpoints),
                        way=at(a, b),
                    ),
                    f"node {a} → node {b}",
                    _LARGE_LOST
                    if gap.only_large
                    else "let the nodes reach each other on all ports (firewall, security group, "
                    "network policy)",
                )
    for rank, reason in document.master_port.items():
        if rank not in named:
            yield error(
                "node-unreachable",
                Phrase(
                    "{node} cannot reach MASTER_PORT: {way}",
                    node=_place(rank, document.endpoints),
                    way=reason,
                ),
                f"node {rank} → node 0",
                _NAME_IT
                if rank in document.master_unnamed
                else "open MASTER_PORT on node 0 (firewall, security group, network policy)",
            )


def _packet_sizes(endpoints: Endpoints) -> Iterator[Finding]:
    """Report different MTUs: nodes of one network need the same, or large packets get lost."""
    by_mtu: dict[int, list[int]] = {}
    for rank, endpoint in sorted(endpoints.items()):
        if endpoint.mtu:
            by_mtu.setdefault(endpoint.mtu, []).append(rank)
    if len(by_mtu) < 2:
        return
    most = max(by_mtu.values(), key=len)
    others = [rank for ranks in by_mtu.values() if ranks is not most for rank in ranks]
    sizes = [
        Phrase("{mtu} (node {ranks})", mtu=mtu, ranks=compact(ranks))
        for mtu, ranks in sorted(by_mtu.items(), reverse=True)
    ]
    yield warning(
        "mtu-differs",
        Phrase("the nodes' interfaces have different MTUs: {sizes}", sizes=joined(sizes)),
        f"node {others[0]}" if len(others) == 1 and len(most) > 1 else "all nodes",
        "set them all to the MTU of the switches (ip link set dev NAME mtu 9000)",
    )


def _clocks(offsets_s: Mapping[int, float]) -> Iterator[Finding]:
    wrong = [rank for rank, offset_s in sorted(offsets_s.items()) if abs(offset_s) > LARGEST_CLOCK_OFFSET_S]
    if not wrong:
        return
    worst = max(wrong, key=lambda rank: abs(offsets_s[rank]))
    yield warning(
        "clock-differs",
        Phrase(
            "clocks differ from node 0's by more than {limit:g} s: node {ranks} (node {worst}: {offset} s)",
            limit=LARGEST_CLOCK_OFFSET_S,
            ranks=compact(wrong),
            worst=worst,
            offset=f"{offsets_s[worst]:+.0f}",
        ),
        f"node {worst}" if len(wrong) == 1 else "all nodes",
        (
            "synchronise them with chrony or ntpd: otherwise times in the logs of different nodes "
            "cannot be compared, and tokens and certificates may be refused"
        ),
    )


def _rank_order(document: Document) -> Iterator[Finding]:
    """Report ranks that do not follow the network, if all nodes came and know their switches."""
    if not (document.absent or document.foreign):
        endpoints = sorted(document.endpoints.items())
        yield from rank_order(compare_orders(endpoint.network for _, endpoint in endpoints))


def _collectives(document: Document) -> Iterator[Finding]:
    """Report a node that is bad with all partners that do well with others; otherwise report the pair."""
    pairs = [result for result in document.measurements if len(result.group) == 2]
    bad = [result for result in pairs if is_bad(result, pairs)]
    cleared = {rank for result in pairs if result not in bad for rank in result.group}
    blamed: dict[int, list[Measurement]] = {}
    for result in bad:
        guilty = [rank for rank in result.group if rank not in cleared]
        if len(guilty) == 1:
            blamed.setdefault(guilty[0], []).append(result)
    for rank, results in blamed.items():
        yield _of_node(rank, results, pairs, document.endpoints)
    for result in bad:
        if not blamed.keys() & set(result.group):
            yield _of_link(result, pairs, document.endpoints)
    for result in document.measurements:
        if len(result.group) > 2 and result.problem:
            yield error(
                "collective-wrong" if result.wrong else "collective-failed",
                Phrase(
                    "each pair works, but a collective of all {count} nodes does not: {problem}",
                    count=len(result.group),
                    problem=result.problem,
                ),
                "all nodes",
                "try half of the nodes at a time; look for a limit on connections or open files",
            )


def _of_node(
    rank: int, results: Sequence[Measurement], pairs: Sequence[Measurement], endpoints: Endpoints
) -> Finding:
    place = _place(rank, endpoints)
    partners = joined(str(r) for result in results for r in result.group if r != rank)
    failed = [result for result in results if result.problem]
    if failed:
        return error(
            "collective-wrong" if failed[0].wrong else "collective-failed",
            Phrase(
                ("{node} fails with every partner, while these work with others ({partners}): {problem}"),
                node=place,
                partners=partners,
                problem=failed[0].problem,
            ),
            f"node {rank}",
            (
                "check this node first: MTU (ip link; ping -M do -s 1472 NODE, 8972 for jumbo "
                "frames), firewall, cable and port; or exclude it"
            ),
        )
    slowest = min(result.bandwidth_gbps for result in results)
    # With an odd number of nodes, or if others failed, a node has had one partner only.
    once = Phrase(" (measured once: it may be the link between them)") if len(results) == 1 else ""
    return warning(
        "node-slow",
        Phrase(
            "{node} reaches only {rate} with node {partners}{once}, other pairs {usual}",
            node=place,
            rate=_rate(slowest),
            partners=partners,
            once=once,
            usual=_rate(reference_gbps(pairs)),
        ),
        f"node {rank}",
        (
            "check its cable, port and NIC rate (ethtool, ibstat), or exclude it: all nodes wait "
            "for the slowest"
        ),
    )


def _of_link(result: Measurement, pairs: Sequence[Measurement], endpoints: Endpoints) -> Finding:
    a, b = result.group
    both = {"a": _place(a, endpoints), "b": _place(b, endpoints)}
    if result.problem:
        finding_id = "collective-wrong" if result.wrong else "link-broken"
        hint = (
            "the two may work well on another network: check NCCL_SOCKET_IFNAME, the MTU "
            "between them (ping -M do -s 1472 NODE), GIDs and firewalls"
        )
        what = Phrase("{a} and {b} fail together: {problem}", **both, problem=result.problem)
        return error(finding_id, what, f"node {a} ↔ node {b}", hint)
    return warning(
        "link-slow",
        Phrase(
            "{a} and {b} reach only {rate} together, other pairs {usual}",
            **both,
            rate=_rate(result.bandwidth_gbps),
            usual=_rate(reference_gbps(pairs)),
        ),
        f"node {a} ↔ node {b}",
        ("both work well with other nodes, or were not tested with others: check the switches between them"),
    )


def _measured(results: Sequence[Measurement]) -> Iterator[Finding]:
    for whole in (False, True):
        good = [o for o in results if not o.problem and (len(o.group) > 2) is whole]
        if not good:
            continue
        rates = [result.bandwidth_gbps for result in good]
        what = (
            Phrase("all {count} nodes together", count=len(good[0].group))
            if whole
            else Phrase("pairs of nodes ({count})", count=len(good))
        )
        spread = (
            Phrase(
                " (slowest {slowest}, fastest {fastest})",
                slowest=_rate(min(rates)),
                fastest=_rate(max(rates)),
            )
            if len(rates) > 1
            else ""
        )
        latency_us = statistics.median(result.latency_us for result in good)
        yield info(
            "collective-measured",
            Phrase(
                "{who}: {rate}{spread}, latency {latency} µs; results correct",
                who=what,
                rate=_rate(statistics.median(rates)),
                spread=spread,
                latency=f"{latency_us:.0f}",
            ),
            "all nodes" if whole else "pairs",
        )


def way(address: str, port: int, problem: str) -> Phrase:
    """Return where another node was tried, and what failed."""
    return Phrase("{where}: {problem}", where=f"{bracketed(address)}:{port}", problem=problem)


def _rate(gbps: float) -> str:
    return f"{gbps:.1f} Gbit/s" if gbps >= 1 else f"{gbps * 1000:.0f} Mbit/s"


def _place(rank: int, endpoints: Endpoints) -> Phrase:
    endpoint = endpoints.get(rank)
    if endpoint is None:
        return Phrase("node {rank}", rank=rank)
    return Phrase("node {rank} ({host}, {address})", rank=rank, host=endpoint.host, address=endpoint.address)
