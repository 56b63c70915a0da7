from __future__ import annotations

import pytest

from platform_launch.errors import UsageError
from platform_launch.rendezvous.ranks import (
    absent_ranks,
    compact,
    describe_absent,
    describe_nodes,
    looks_like_processes,
    parse_ranks,
)
from tests.rendezvous.nodes import fingerprint


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", {0}),
        ("0,2-3", {0, 2, 3}),
        ("rank-2", {2}),
        (" 1 , 3 - 4 ", {1, 3, 4}),
        ("rank-1,rank-2", {1, 2}),
    ],
)
def test_ranks_are_read_as_people_write_them(text: str, ranks: set[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", ",", "a", "3-1", "-1", "1-", "0x1", "²", "1,,2", "9999999"])
def test_text_that_names_no_node_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of ranks"):
        parse_ranks(text)


def test_few_absent_nodes_are_listed() -> None:
    assert describe_absent([4, 9], 16, {}) == "2 of 16 nodes missing: node 4, node 9; never connected"


def test_absent_node_that_was_seen_has_a_time() -> None:
    text = describe_absent([4, 9], 16, {9: 41.7})
    assert text == "2 of 16 nodes missing: node 4, node 9; last heard from node 9 42 s ago, the others never"


def test_many_absent_nodes_are_shortened() -> None:
    assert describe_absent(list(range(1, 1024)), 1024, {}).startswith(
        "1023 of 1024 nodes missing: nodes 1-1023;"
    )


def test_absent_ranks_are_those_that_did_not_join() -> None:
    assert absent_ranks({0: fingerprint(0), 2: fingerprint(2)}, 4) == [1, 3]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([], "no node"), ([3], "node 3"), ([1, 0], "node 0, node 1"), ([0, 1, 2, 3, 7], "nodes 0-3, 7")],
)
def test_ranks_as_text(ranks: list[int], words: str) -> None:
    assert describe_nodes(ranks) == words


def test_ranges_of_ranks() -> None:
    assert compact([5, 1, 2, 3, 9, 8]) == "1-3, 5, 8-9"


@pytest.mark.parametrize("ranks", [(0, 1), (0, 8)])
def test_world_size_that_counts_processes_is_recognised(ranks: tuple[int, ...]) -> None:
    """2 of 16 announced nodes joined, with 8 GPUs each; numbered by node, or by their first process."""
    text = looks_like_processes({rank: fingerprint(rank, 16) for rank in ranks}, 16)
    assert text.startswith("2 nodes connected, 16 were expected, and each has 8 GPUs: WORLD_SIZE=16 ")


@pytest.mark.parametrize(("ranks", "nnodes"), [((0, 1), 15), ((0, 3), 16), ((0,), 16), ((0, 1), 32)])
def test_late_nodes_are_not_mistaken_for_processes(ranks: tuple[int, ...], nnodes: int) -> None:
    assert looks_like_processes({rank: fingerprint(rank, nnodes) for rank in ranks}, nnodes) == ""


def test_nodes_without_gpus_are_not_mistaken_for_processes() -> None:
    assert looks_like_processes({rank: fingerprint(rank, 2, gpus=1) for rank in (0, 1)}, 2) == ""
