"""What nodes must agree in, should agree in, and may differ in."""

from __future__ import annotations

import pytest

from platform_launch.console import languages
from platform_launch.errors import NodesDisagreeError, TopologyError
from platform_launch.rendezvous.messages import decode, encode
from platform_launch.rendezvous.verdict import RunRefusal, StartVerdict, judge, table
from platform_launch.text import Phrase, columns
from tests.rendezvous.nodes import fingerprint


def test_equal_nodes_agree() -> None:
    verdict = judge([fingerprint(0), fingerprint(1)], {})
    assert verdict == StartVerdict(None, (), ())


@pytest.mark.parametrize(
    "fact",
    [
        "nodes announced",
        "processes per node",
        "world size",
        "platform",
        "launcher",
        "master port",
        "training config",
        "NCCL",
        "torch release",
    ],
)
def test_difference_that_breaks_training_is_refused(fact: str) -> None:
    refusal = judge([fingerprint(0), fingerprint(1, facts={fact: "other"})], {}).refusal
    assert refusal is not None
    assert refusal.exit_code == NodesDisagreeError.exit_code
    assert refusal.reason.startswith(f"the nodes disagree: {fact}:")
    assert refusal.reason.endswith("other on node 1")
    assert ("lost a GPU" in refusal.hint) == (fact == "processes per node")


@pytest.mark.parametrize("fact", ["torch", "GPU driver", "$NCCL_IB_TC", "script", "git revision"])
def test_difference_that_may_be_intended_is_a_warning(fact: str) -> None:
    verdict = judge([fingerprint(0), fingerprint(1, facts={fact: "other"})], {})
    assert verdict.refusal is None
    assert len(verdict.warnings) == 1
    assert verdict.warnings[0].startswith(f"{fact}: ")


def test_different_scripts_are_reported_with_their_paths() -> None:
    nodes = [
        fingerprint(rank, 3, facts={"script": "aa" if rank else "bb"}, paths={"script": f"/{rank}/train.py"})
        for rank in range(3)
    ]
    (warning,) = judge(nodes, {}).warnings
    assert warning == (
        "script: aa (/1/train.py, /2/train.py) on node 1, node 2; bb (/0/train.py) on node 0 "
        "(nearly always a mistake: each node runs the file it has)"
    )


def test_same_file_at_different_paths_is_no_difference() -> None:
    nodes = [fingerprint(rank, paths={"script": f"/{rank}/train.py"}) for rank in range(2)]
    assert judge(nodes, {}).differences == ()


def test_missing_variable_is_shown_as_not_set() -> None:
    nodes = [fingerprint(rank, 3, facts={"$NCCL_IB_TC": "106"} if rank else {}) for rank in range(3)]
    assert judge(nodes, {}).warnings == ("$NCCL_IB_TC: 106 on node 1, node 2; not set on node 0",)


def test_different_torch_releases_are_refused_and_both_versions_shown() -> None:
    other = {"torch": "2.6.0+cu124", "torch release": "2.6"}
    verdict = judge([fingerprint(0), fingerprint(1, facts=other)], {})
    assert verdict.refusal is not None
    assert verdict.refusal.reason == "the nodes disagree: torch release: 2.8 on node 0; 2.6 on node 1"
    assert verdict.warnings == ("torch: 2.8.0+cu128 on node 0; 2.6.0+cu124 on node 1",)


def test_node_that_cannot_reach_the_master_port_is_named() -> None:
    nodes = [fingerprint(0), fingerprint(1, master_port_problem="reaches node 0 on port 29501, but not …")]
    refusal = judge(nodes, {}).refusal
    assert refusal is not None
    assert refusal.exit_code == TopologyError.exit_code
    assert refusal.reason == "node 1, gpu-1 (10.0.0.1): reaches node 0 on port 29501, but not …"


def test_wrong_clock_is_a_warning_with_the_worst_node() -> None:
    verdict = judge([fingerprint(rank, 3) for rank in range(3)], {0: 0.0, 1: 0.3, 2: -61.0})
    assert verdict.refusal is None
    assert len(verdict.warnings) == 1
    assert verdict.warnings[0].startswith("clock: more than 2 s from node 0's on node 2 (node 2: -61.0 s)")


def test_table_shows_differences_by_severity_and_merges_equal_nodes() -> None:
    nodes = [
        fingerprint(rank, 16, facts={"GPU driver": "535.54.03"} if rank == 4 else {}) for rank in range(15)
    ]
    nodes.append(fingerprint(15, 16, facts={"processes per node": "7"}))
    lines = table(judge(nodes, {}).differences)
    assert [line.split() for line in lines] == [
        ["differs", "must", "agree", "value", "nodes"],
        ["processes", "per", "node", "yes", "8", "0-14"],
        ["7", "15"],
        ["GPU", "driver", "no", "570.86.15", "0-3,", "5-15"],
        ["535.54.03", "4"],
    ]


def test_columns_of_a_chinese_table_are_aligned() -> None:
    nodes = [fingerprint(0, 2), fingerprint(1, 2, facts={"GPU driver": "535", "platform": "慢"})]
    languages.choose("zh")
    try:
        lines = table(judge(nodes, {}).differences)
    finally:
        languages._chosen.clear()
    assert lines[0].split() == ["不一致项", "必须一致", "值", "节点"]
    ranks = [line for line in lines[1:] if line.endswith((" 0", " 1"))]
    assert len({columns(line) for line in ranks}) == 1


def test_table_of_a_thousand_nodes_is_narrow() -> None:
    nodes = [fingerprint(rank, 1024, facts={"GPU driver": f"5{rank % 7}"}) for rank in range(1024)]
    assert max(len(line) for line in table(judge(nodes, {}).differences)) <= 96


def test_problem_of_hundreds_of_nodes_fits_one_message() -> None:
    problem = Phrase(
        "{where} does not answer: the packets are lost on the way, or the machine is down", where="n0"
    )
    nodes = [fingerprint(rank, 300, master_port_problem=problem) for rank in range(300)]
    refusal = judge(nodes, {}).refusal
    assert refusal is not None
    assert decode(encode(refusal), RunRefusal) == refusal


def test_ranks_that_do_not_follow_the_network_are_a_warning() -> None:
    nodes = [fingerprint(rank, 4, network=("core", f"rack{rank % 2}")) for rank in range(4)]
    [warning] = judge(nodes[::-1], {}).warnings
    assert "4 of 4 edges of a ring cross a switch, 2 in the network's order" in warning
    assert judge(nodes, {}).refusal is None
    follows = [fingerprint(rank, 4, network=("core", f"rack{rank // 2}")) for rank in range(4)]
    assert judge(follows, {}).warnings == ()
