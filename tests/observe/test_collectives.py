from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from platform_launch.observe.collectives import compare, ranks_named
from platform_launch.observe.dumps import RankTrace, parse_dump
from platform_launch.observe.words import english
from tests.observe.dump_files import document, entry, gloo, nccl

Spec = tuple[Sequence[Mapping[str, Any]], Mapping[int, tuple[int, int]]]


def traces(
    specs: Mapping[int, Spec], groups: Mapping[str, Sequence[int]] | None = None, *, as_gloo: bool = False
) -> dict[int, RankTrace]:
    write = gloo if as_gloo else nccl
    return {
        rank: parse_dump(write(document(entries, status=status, groups=groups)), rank)
        for rank, (entries, status) in specs.items()
    }


def at(sequence: int, **more: Any) -> Spec:
    """Return a rank that waits in one operation."""
    return [entry(sequence, **more)], {0: (sequence, sequence - 1)}


def idle(sequence: int) -> Spec:
    """Return a rank that has done its last operation and came to no other."""
    return [entry(sequence, state="completed")], {0: (sequence, sequence)}


@pytest.mark.parametrize("as_gloo", [False, True])
def test_rank_that_has_not_come_is_the_suspect(*, as_gloo: bool) -> None:
    groups = {} if as_gloo else {"0": range(4)}
    report = compare(traces({0: at(6), 1: at(6), 2: idle(5), 3: at(6)}, groups, as_gloo=as_gloo))
    assert report.suspect_ranks == (2,)
    (waiting,) = report.waiting
    assert (waiting.ranks, waiting.behind) == ((0, 1, 3), (2,))
    assert str(waiting).startswith("ranks 0, 1 and 3 in all_reduce #6 of group 0")


def test_rank_whose_device_stopped_earlier_is_the_suspect() -> None:
    """Its Python code went on and enqueued more."""
    stuck = [entry(5), entry(6), entry(7)], {0: (7, 4)}
    report = compare(traces({0: at(7), 1: stuck, 2: at(7)}, {"0": range(3)}))
    assert report.suspect_ranks == (1,)
    assert {rank for waiting in report.waiting for rank in waiting.stopped} == {1}


def test_rank_of_another_operation_under_the_same_number_is_the_suspect() -> None:
    report = compare(traces({0: at(6), 1: at(6), 2: at(6, name="broadcast")}, {"0": range(3)}))
    assert report.suspect_ranks == (2,)
    assert report.waiting[0].differ == (2,)


def test_rank_of_another_shape_is_the_suspect_where_shapes_must_agree() -> None:
    other = at(6, sizes=[[9]])
    assert compare(traces({0: at(6), 1: at(6), 2: other}, {"0": range(3)})).suspect_ranks == (2,)
    uneven = {rank: at(6, name="all_to_all", sizes=[[rank]]) for rank in range(3)}
    assert compare(traces(uneven, {"0": range(3)})).suspect_ranks == ()


def test_of_two_ranks_that_disagree_both_are_suspects() -> None:
    report = compare(traces({0: at(6), 1: at(6, name="broadcast")}, {"0": range(2)}))
    assert report.suspect_ranks == (0, 1)


def test_rank_without_a_dump_is_the_suspect_of_those_who_wait() -> None:
    report = compare(traces({0: at(6), 1: at(6)}, {"0": range(3)}))
    assert (report.suspect_ranks, report.missing_ranks) == ((2,), (2,))


def test_world_size_names_ranks_that_no_group_does() -> None:
    report = compare(traces({0: at(6), 1: at(6)}, as_gloo=True), world_size=3)
    assert (report.suspect_ranks, report.missing_ranks) == ((2,), (2,))


def test_who_is_late_only_because_it_waits_elsewhere_is_no_suspect() -> None:
    """Rank 1 keeps rank 0 waiting in group 1, since rank 2 keeps it waiting in group 2."""
    groups = {"1": [0, 1], "2": [1, 2]}
    specs: dict[int, Spec] = {
        0: ([entry(4, group="1", pg_id=1)], {1: (4, 3)}),
        1: (
            [entry(3, group="1", pg_id=1, state="completed"), entry(9, group="2", pg_id=2)],
            {1: (3, 3), 2: (9, 8)},
        ),
        2: ([entry(8, group="2", pg_id=2, state="completed")], {2: (8, 8)}),
    }
    assert compare(traces(specs, groups)).suspect_ranks == (2,)


def test_ring_of_waiters_is_named_whole() -> None:
    groups = {"1": [0, 1], "2": [1, 2], "3": [2, 0]}
    specs: dict[int, Spec] = {
        0: ([entry(1, group="1", pg_id=1)], {1: (1, 0), 3: (0, 0)}),
        1: ([entry(1, group="2", pg_id=2)], {2: (1, 0), 1: (0, 0)}),
        2: ([entry(1, group="3", pg_id=3)], {3: (1, 0), 2: (0, 0)}),
    }
    assert compare(traces(specs, groups)).suspect_ranks == (0, 1, 2)


def test_nobody_waits_where_all_is_done() -> None:
    report = compare(traces({0: idle(5), 1: idle(5)}, {"0": range(2)}))
    assert (report.suspect_ranks, report.waiting) == ((), ())
    assert compare({}) == compare({}, world_size=0)


def test_all_wait_in_the_same_operation_and_none_is_accused() -> None:
    """Then a network or a device is stuck, of which these numbers know nothing."""
    report = compare(traces({rank: at(6) for rank in range(3)}, {"0": range(3)}))
    assert report.suspect_ranks == ()
    assert report.waiting[0].ranks == (0, 1, 2)


@pytest.mark.parametrize("name", ["nccl:recv 0<-1", "recv 0<-1"])
def test_receiver_waits_for_a_sender_that_does_not_send(name: str) -> None:
    receive = [entry(1, p2p=True) | {"profiling_name": name}], {0: (0, 0)}
    report = compare(traces({0: receive, 1: idle(0), 2: idle(0)}, {"0": range(3)}))
    assert report.suspect_ranks == (1,)


def test_rank_that_left_before_its_first_operation_is_behind() -> None:
    """gloo's recorder knows no group of a rank that never used it."""
    empty: Spec = ([], {})
    report = compare(traces({0: at(1), 1: at(1), 2: empty}, as_gloo=True))
    assert report.suspect_ranks == (2,)


class CountedTraces(dict[int, RankTrace]):
    """Counts how often a rank's trace is looked at."""

    looks = 0

    def __getitem__(self, rank: int) -> RankTrace:
        self.looks += 1
        return super().__getitem__(rank)


def test_of_many_ranks_each_is_looked_at_a_few_times_and_not_once_for_each_other() -> None:
    many = CountedTraces(traces({rank: idle(5) if rank % 2 else at(6) for rank in range(200)}))
    report = compare(many)
    assert report.suspect_ranks == tuple(range(1, 200, 2))
    assert 0 < many.looks < 10 * len(many)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 2, 3], "ranks 0, 2 and 3"),
        ([*range(15), 17], "ranks 0-14 and 17"),
        ([1, 3, 5], "ranks 1, 3 and 5"),
        ([], "rank none"),
    ],
)
def test_ranks_are_named_shortly(ranks: list[int], words: str) -> None:
    assert english(ranks_named(ranks)) == words
