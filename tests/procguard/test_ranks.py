"""The rank rule: the contract's own examples, and every case in which no ranks are given out."""

from __future__ import annotations

from typing import Any

import pytest

from platform_launch.procguard.api.ranks import RankTable, WorkerKind, WorkerName, assign


def table(*workers: str, master: str = "gn6", **options: Any) -> RankTable:
    names = [WorkerName.parse(worker) for worker in workers]
    return assign(names, master_addr=master, master_port=29500, **options)


def rows(given: RankTable) -> list[tuple[str, int, int, int]]:
    return [(str(p.worker), p.rank, p.local_rank, p.node_rank) for p in given.places]


def codes(given: RankTable) -> list[str]:
    assert not given.places
    assert all(problem.text and problem.hint for problem in given.problems)
    return [problem.code for problem in given.problems]


def test_four_workers_on_four_nodes() -> None:
    given = table("gn7-0", "gn40-0", "gn39-0", "gn6-0", world_size=4)
    assert rows(given) == [("gn6-0", 0, 0, 0), ("gn39-0", 1, 0, 1), ("gn40-0", 2, 0, 2), ("gn7-0", 3, 0, 3)]
    assert given.environment(given.places[2], "nccl") == {
        "MASTER_ADDR": "gn6",
        "MASTER_PORT": "29500",
        "NODE_RANK": "2",
        "NNODES": "4",
        "WORLD_SIZE": "4",
        "RANK": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "BACKEND": "nccl",
    }


def test_two_workers_on_each_of_two_nodes() -> None:
    given = table("gn7-1", "gn6-1", "gn7-0", "gn6-0")
    assert rows(given) == [("gn6-0", 0, 0, 0), ("gn6-1", 1, 1, 0), ("gn7-0", 2, 0, 1), ("gn7-1", 3, 1, 1)]
    assert {p.local_world_size for p in given.places} == {2}


def test_workers_of_a_node_by_number_and_a_master_that_is_not_first_by_name() -> None:
    given = table("gn10-10", "gn2-0", "gn10-2", master="gn2")
    assert [row[0] for row in rows(given)] == ["gn2-0", "gn10-2", "gn10-10"]


def test_names_with_dashes() -> None:
    assert WorkerName.parse("rack-2-node-7-0") == WorkerName("rack-2-node-7", 0)
    for wrong in ("gn6", "gn6-", "-0", "gn6-00", "gn6-x", "gn6-٣", ""):
        with pytest.raises(ValueError, match="expected NODE-NUMBER"):
            WorkerName.parse(wrong)


def test_a_master_given_by_address() -> None:
    aliases = {"gn6": ["10.0.0.6", "gn6.cluster"], "gn7": ["10.0.0.7"]}
    given = table("gn6-0", "gn7-0", master=" 10.0.0.7 ", aliases=aliases)
    assert rows(given)[0][0] == "gn7-0"
    assert given.environment(given.places[0], "gloo")["MASTER_ADDR"] == "10.0.0.7"


def test_an_address_of_two_nodes_is_no_master() -> None:
    aliases = {"gn6": ["172.17.0.1"], "gn7": ["172.17.0.1"]}
    assert codes(table("gn6-0", "gn7-0", master="172.17.0.1", aliases=aliases)) == ["master-ambiguous"]


def test_a_world_size_below_the_number_of_workers_leaves_some_idle_and_says_so() -> None:
    given = table("gn6-0", "gn6-1", "gn7-0", world_size=2)
    assert [row[0] for row in rows(given)] == ["gn6-0", "gn6-1"]
    assert [str(worker) for worker in given.idle] == ["gn7-0"]
    assert [note.code for note in given.notes] == ["world-size-below"]
    nnodes = {given.environment(p, "nccl")["NNODES"] for p in given.places}
    assert nnodes == {"1"}, "a node without a rank is no node of the job"


@pytest.mark.parametrize(
    ("workers", "options", "expected"),
    [
        (["gn6-0", "gn7-0"], {"world_size": 3}, ["world-size-above"]),
        (["gn6-0", "gn7-0"], {"world_size": 0}, ["world-size-invalid"]),
        (["gn6-0", "gn6-0"], {}, ["duplicate-workers"]),
        (["gn7-0", "gn8-0"], {}, ["master-elsewhere"]),
        (["gn6-0"], {"master": "gn6-0"}, ["master-is-worker"]),
        (["gn6-0"], {"master": " "}, ["no-master"]),
        (["gn6-0", "gn7-0"], {"master": "gn9", "world_size": 5}, ["master-elsewhere", "world-size-above"]),
    ],
)
def test_no_ranks(workers: list[str], options: dict[str, Any], expected: list[str]) -> None:
    assert codes(table(*workers, **options)) == expected


def test_no_workers_at_all() -> None:
    assert "no-workers" in codes(table())


def test_one_node_only() -> None:
    given = table("gn6-3", "gn6-1")
    assert rows(given) == [("gn6-1", 0, 0, 0), ("gn6-3", 1, 1, 0)]
    assert given.environment(given.places[0], "gloo")["NNODES"] == "1"


def test_launchers_of_whole_nodes_are_counted_by_node() -> None:
    given = table("gn7-0", "gn6-0", kind=WorkerKind.NODE)
    assert rows(given) == [("gn6-0", 0, 0, 0), ("gn7-0", 1, 0, 1)]
    names = set(given.environment(given.places[1], "nccl"))
    assert names == {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES"}, "none that means a process"
    assert codes(table("gn6-0", "gn6-1", kind=WorkerKind.NODE)) == ["several-launchers"]


def test_spares_stand_in_for_nodes_to_avoid_but_not_for_the_masters() -> None:
    workers = ("gn6-0", "gn6-1", "gn7-0", "gn7-1", "gn8-0", "gn8-1")
    given = table(*workers, world_size=4)
    assert [row[0] for row in rows(given)] == ["gn6-0", "gn6-1", "gn7-0", "gn7-1"]
    assert [str(worker) for worker in given.idle] == ["gn8-0", "gn8-1"]
    given = table(*workers, world_size=4, avoided={"gn7"})
    assert rows(given)[2:] == [("gn8-0", 2, 0, 1), ("gn8-1", 3, 1, 1)]
    assert [str(worker) for worker in given.idle] == ["gn7-0", "gn7-1"]
    assert rows(table(*workers, world_size=4, avoided={"gn6"}))[0][0] == "gn6-0", (
        "rank 0 is where MASTER_ADDR points"
    )
    few = table(*workers, world_size=4, avoided={"gn7", "gn8"})
    assert [row[0] for row in rows(few)] == ["gn6-0", "gn6-1", "gn7-0", "gn7-1"], "there is nobody else"
