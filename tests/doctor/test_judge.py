"""Who is paired with whom, and who is blamed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from platform_launch.doctor.cluster import pairing
from platform_launch.doctor.cluster.document import DoctorState, Document, Endpoint, Gap, Measurement
from platform_launch.doctor.cluster.judge import judge
from platform_launch.doctor.finding import Finding
from platform_launch.rendezvous.messages import decode, encode
from platform_launch.rendezvous.ranks import ranges

FAST, SLOW = 20.0, 2.0


def measured(groups: list[tuple[int, ...]], slow: set[int], broken: set[int]) -> list[Measurement]:
    """Measure as a network would in which some nodes are slow and others fail."""
    return [
        Measurement(group, problem="Connection closed by peer")
        if broken & set(group)
        else Measurement(group, latency_us=50.0, bandwidth_gbps=SLOW if slow & set(group) else FAST)
        for group in groups
    ]


def met(nnodes: int, *, slow: frozenset[int] = frozenset(), broken: frozenset[int] = frozenset()) -> Document:
    """Return what ``nnodes`` find together."""
    ranks = list(range(nnodes))
    results = measured(pairing.first(ranks), set(slow), set(broken))
    results += measured(pairing.second(ranks, results), set(slow), set(broken))
    results += measured(pairing.third(ranks), set(slow), set(broken))
    return Document(endpoints=endpoints(nnodes), measurements=tuple(results))


def endpoints(nnodes: int) -> dict[int, Endpoint]:
    return {rank: Endpoint(f"host{rank}", f"10.0.0.{rank + 1}", 4000 + rank) for rank in range(nnodes)}


def blamed(document: Document) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in judge(document):
        if finding.id != "collective-measured":
            found.setdefault(finding.id, []).append(finding.where)
    return found


@pytest.mark.parametrize("nnodes", [2, 3, 4, 5, 7, 8, 16, 33])
def test_nodes_that_do_well_give_measurements_only(nnodes: int) -> None:
    assert blamed(met(nnodes)) == {}


@pytest.mark.parametrize("nnodes", [3, 4, 5, 6, 7, 16, 33])
def test_the_slow_node_is_named_wherever_it_is(nnodes: int) -> None:
    for rank in range(nnodes):
        assert blamed(met(nnodes, slow=frozenset({rank}))) == {"node-slow": [f"node {rank}"]}


def test_a_node_that_was_measured_once_is_not_blamed_for_certain() -> None:
    (last,) = (f.what for f in judge(met(5, slow=frozenset({4}))) if f.id == "node-slow")
    assert "it may be the link" in last
    (first,) = (f.what for f in judge(met(4, slow=frozenset({0}))) if f.id == "node-slow")
    assert "it may be the link" not in first


@pytest.mark.parametrize("nnodes", [3, 4, 5, 6, 7, 16, 33])
def test_the_broken_node_is_named_wherever_it_is(nnodes: int) -> None:
    for rank in range(nnodes):
        assert blamed(met(nnodes, broken=frozenset({rank}))) == {"collective-failed": [f"node {rank}"]}


def test_several_slow_nodes_among_many_are_all_named() -> None:
    draw = random.Random(7)
    for _ in range(50):
        slow = frozenset(draw.sample(range(16), 4))
        found = blamed(met(16, slow=slow))
        assert {kind: sorted(nodes) for kind, nodes in found.items()} == {
            "node-slow": sorted(f"node {rank}" for rank in slow)
        }


def test_two_nodes_that_fail_together_are_both_named_as_a_link() -> None:
    assert blamed(met(2, broken=frozenset({1}))) == {"link-broken": ["node 0 ↔ node 1"]}


def test_a_suspect_meets_a_node_that_did_well() -> None:
    results = measured([(0, 1), (2, 3), (4, 5)], slow={2}, broken=set())
    second = pairing.second(range(6), results)
    partners = {rank: set(pair) - {rank} for pair in second for rank in pair}
    assert partners[2] <= {0, 1, 4, 5}
    assert partners[3] <= {0, 1, 4, 5}
    assert not {frozenset(pair) for pair in second} & {frozenset((0, 1)), frozenset((4, 5))}


def test_nodes_change_partners() -> None:
    for nnodes in (4, 6, 8, 16):
        first = pairing.first(range(nnodes))
        second = pairing.second(range(nnodes), measured(first, set(), set()))
        assert not {frozenset(pair) for pair in first} & {frozenset(pair) for pair in second}
        assert sorted(rank for pair in second for rank in pair) == list(range(nnodes))


def test_wrong_numbers_are_worse_than_a_failure() -> None:
    results = (
        Measurement((0, 1), problem="all-reduce gave 3 instead of 4 at element 0", wrong=True),
        Measurement((2, 3), bandwidth_gbps=FAST),
        Measurement((0, 2), bandwidth_gbps=FAST),
        Measurement((1, 3), problem="all-reduce gave 3 instead of 4 at element 0", wrong=True),
    )
    assert blamed(Document(endpoints=endpoints(4), measurements=results)) == {"collective-wrong": ["node 1"]}


def gaps(*ranks: int, only_large: bool = False) -> tuple[Gap, ...]:
    return (Gap("nothing answers", ranges(ranks), only_large),)


def test_of_a_thousand_nodes_that_a_firewall_keeps_apart_each_is_named() -> None:
    everyone = range(1000)
    reach = {rank: gaps(*(other for other in everyone if other != rank)) for rank in everyone}
    state = DoctorState(document=Document(endpoints=endpoints(1000), reach=reach))
    again = decode(encode(state), DoctorState).document
    assert again is not None
    assert blamed(again) == {"node-unreachable": [f"node {rank}" for rank in everyone]}


def test_ranges_of_a_stranger_are_no_matter_of_memory() -> None:
    for forged in (((0, 10**9),), ((0, 5), (5, 7)), ((3, 2),), ((1,),)):
        with pytest.raises(ValueError, match="expected them in order"):
            Gap("", forged)


def test_a_node_that_nobody_reaches_is_named_once() -> None:
    reach = {rank: gaps(3) for rank in range(3)} | {3: ()}
    assert blamed(Document(endpoints=endpoints(4), reach=reach)) == {"node-unreachable": ["node 3"]}


def test_a_node_that_reaches_nobody_is_named_once() -> None:
    reach = {0: (), 1: gaps(0, 2, 3), 2: (), 3: ()}
    assert blamed(Document(endpoints=endpoints(4), reach=reach)) == {"node-unreachable": ["node 1"]}


def test_a_single_gap_is_named_with_its_direction_and_port() -> None:
    reach = {0: (), 1: gaps(2), 2: (), 3: ()}
    (finding,) = judge(Document(endpoints=endpoints(4), reach=reach))
    assert (finding.id, finding.where) == ("link-broken", "node 1 → node 2")
    assert (
        "host1, 10.0.0.2) cannot reach node 2 (host2, 10.0.0.3): 10.0.0.3:4002: nothing answers"
        in finding.what
    )


def test_where_only_large_packets_get_lost_the_mtu_is_to_be_mended_and_no_firewall() -> None:
    narrow = {rank: gaps(3, only_large=True) for rank in range(3)}
    document = Document(endpoints=endpoints(4), reach=narrow | {3: ()})
    (node,) = judge(document)
    assert (node.id, node.where) == ("node-unreachable", "node 3")
    reach = {0: gaps(1, only_large=True), 1: gaps(0)}
    large, closed = judge(Document(endpoints=endpoints(2), reach=reach))
    assert (large.where, closed.where) == ("node 0 → node 1", "node 1 → node 0")
    for finding, of_size in ((node, True), (large, True), (closed, False)):
        assert ("MTU" in finding.hint, "firewall" in finding.hint) == (of_size, not of_size)


def test_interfaces_of_different_mtu_are_told_by_node() -> None:
    def of(*sizes: int) -> Document:
        return Document(endpoints={rank: Endpoint("h", "10.0.0.1", 1, mtu) for rank, mtu in enumerate(sizes)})

    assert blamed(of(9000, 9000, 0)) == {}  # one that is not known says nothing
    (odd,) = judge(of(9000, 1500, 9000, 9000))
    assert (odd.id, odd.where) == ("mtu-differs", "node 1")
    assert "9000 (node 0, 2-3), 1500 (node 1)" in str(odd.what)
    assert blamed(of(9000, 1500)) == {"mtu-differs": ["all nodes"]}


def test_clocks_that_differ_are_named_with_the_one_that_differs_most() -> None:
    assert blamed(Document(endpoints=endpoints(3), clock_offsets_s={0: 0.0, 1: 1.5, 2: -1.5})) == {}
    (one,) = judge(Document(endpoints=endpoints(3), clock_offsets_s={1: 7200.0, 2: 0.1}))
    assert (one.id, one.where) == ("clock-differs", "node 1")
    (several,) = judge(Document(endpoints=endpoints(4), clock_offsets_s={1: 4.0, 2: -60.0, 3: 0.0}))
    assert several.where == "all nodes"
    assert "node 1-2 (node 2: -60 s)" in str(several.what)


def test_a_closed_master_port_is_named_apart() -> None:
    document = Document(
        endpoints=endpoints(2), reach={0: (), 1: ()}, master_port={1: "10.0.0.1:29500: no answer"}
    )
    assert blamed(document) == {"node-unreachable": ["node 1 → node 0"]}


def test_a_name_without_an_address_is_no_matter_of_firewalls() -> None:
    document = Document(
        endpoints=endpoints(2),
        reach={0: (), 1: ()},
        master_port=dict.fromkeys((0, 1), "nodeX:29500: no answer"),
        master_unnamed=(0,),
    )
    named, closed = judge(document)
    assert "MASTER_ADDR" in named.hint
    assert "firewall" not in named.hint
    assert "firewall" in closed.hint


def test_absent_silent_double_and_foreign_nodes_are_named() -> None:
    document = Document(
        endpoints=endpoints(3),
        absent=(3, 4),
        silent=(2,),
        duplicates={1: "host9"},
        foreign={5: "another version"},
    )
    assert blamed(document) == {
        "node-foreign": ["node 5"],
        "node-absent": ["node 3", "node 4"],
        "node-silent": ["node 2"],
        "node-duplicate": ["node 1"],
    }


def test_a_document_travels_whole() -> None:
    document = Document(
        endpoints=endpoints(2),
        absent=(2,),
        duplicates={1: "host9"},
        foreign={3: "another version"},
        silent=(1,),
        reach={0: gaps(1, only_large=True), 1: ()},
        master_port={1: "refused"},
        master_unnamed=(1,),
        clock_offsets_s={1: -2.5},
        measurements=(
            Measurement((0, 1), problem="x", wrong=True, silent=(1,)),
            Measurement((0, 1), "", False, (), 1.5, 2.5),
        ),
    )
    assert decode(encode(document), Document) == document


def test_all_nodes_together_may_fail_where_each_pair_does_well() -> None:
    results = (
        *measured([(0, 1), (2, 3)], set(), set()),
        Measurement((0, 1, 2, 3), problem="Too many open files"),
    )
    found: list[Finding] = judge(Document(endpoints=endpoints(4), measurements=results))
    assert [finding.where for finding in found] == ["all nodes", "pairs"]
    assert "Too many open files" in found[0].what


def test_ranks_that_do_not_follow_the_network_are_reported_if_all_nodes_came() -> None:
    def of(*racks: str, absent: tuple[int, ...] = ()) -> dict[str, list[str]]:
        known = [(rack,) if rack else () for rack in racks]
        met = {rank: replace(one, network=known[rank]) for rank, one in endpoints(len(racks)).items()}
        return blamed(Document(endpoints=met, absent=absent))

    assert of("a", "b", "a", "b") == {"rank-order": ["all nodes"]}
    assert of("a", "a", "b", "b") == of("a", "b", "a", "") == {}
    assert of("a", "b", "a", "b", absent=(4,)).keys() == {"node-absent"}
