"""Which rank makes the steps longer, from when the ranks came to their collectives."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from platform_launch.observe.arrivals import (
    ClockOffset,
    GroupArrivals,
    OwnPace,
    RankArrivals,
    RankPace,
    SlowRule,
    window,
)

Compute = Callable[[int, int], float]


def job(
    compute: Compute, *, ranks: int = 4, steps: int = 120, buckets: int = 3, backend: str = "gloo"
) -> list[RankArrivals]:
    """Play a job: each rank computes, reduces its gradients in buckets without waiting, then a loss."""
    arrivals: dict[int, list[tuple[int, str, float, float]]] = {rank: [] for rank in range(ranks)}
    free_s = dict.fromkeys(range(ranks), 1000.0)
    sequence = 0
    for step in range(steps):
        ready = {rank: free_s[rank] + compute(rank, step) for rank in range(ranks)}
        for bucket in range(buckets):
            sequence += 1
            for rank, at_s in ready.items():
                arrivals[rank].append(
                    (sequence, f"{backend}:all_reduce [{bucket}]", at_s + bucket * 0.002, 0.0)
                )
        done_s = max(ready.values()) + buckets * 0.002 + 0.003
        sequence += 1
        for rank in range(ranks):
            arrivals[rank].append((sequence, f"{backend}:all_reduce [loss]", done_s + 0.0001 * rank, 0.0))
        free_s = dict.fromkeys(range(ranks), done_s + 0.004)
    return [RankArrivals(rank, (GroupArrivals.of("0", some),)) for rank, some in arrivals.items()]


def slow(
    ranks: list[RankArrivals], nodes: Mapping[int, int] | None = None, **clocks: ClockOffset
) -> set[int]:
    on = nodes or dict.fromkeys(range(len(ranks)), 0)
    known = {int(name[1:]): clock for name, clock in clocks.items()}
    return {rank for rank, pace in window(ranks, on, known).paces.items() if pace.is_slow}


def test_arrivals_come_back_as_they_were_packed() -> None:
    operations = [(7, "gloo:all_reduce", 1_790_000_000.25, 0.0), (8, "gloo:barrier", 1_790_000_000.5, 0.125)]
    assert GroupArrivals.of("0", operations).operations() == operations
    assert GroupArrivals("0", 0.0, ("a",), "no base64!").operations() == []
    assert GroupArrivals("0", 0.0, (), GroupArrivals.of("0", operations).packed).operations() == []


def test_slow_rank_is_told_with_how_much_longer_it_makes_a_step() -> None:
    ranks = job(lambda rank, _step: 0.4 if rank == 2 else 0.3)
    found = window(ranks, dict.fromkeys(range(4), 0), {})
    assert slow(ranks) == {2}
    pace = found.paces[2]
    assert pace.late_s == pytest.approx(0.1, abs=0.001)
    assert pace.longer == pytest.approx(0.1 / 0.313, abs=0.01)
    assert found.step_s == pytest.approx(0.413, abs=0.001)


HEALTHY: Mapping[str, Callable[[random.Random], Compute]] = {
    "even": lambda chance: lambda _rank, _step: 0.3 + chance.gauss(0, 0.01),
    "noisy": lambda chance: lambda _rank, _step: 0.3 * chance.uniform(0.7, 1.5),
    "of variable length": lambda chance: lambda _rank, _step: 0.1 + chance.expovariate(4.0),
    "with checkpoints on rank 0": lambda _c: lambda rank, step: 30.0 if (rank, step % 50) == (0, 7) else 0.3,
    "with logs on rank 0": lambda _c: lambda rank, step: 0.8 if (rank, step % 10) == (0, 0) else 0.304,
}


@pytest.mark.parametrize("kind", HEALTHY)
@pytest.mark.parametrize("ranks", [2, 8])
def test_healthy_job_is_silent_however_noisy(kind: str, ranks: int) -> None:
    for seed in range(3):
        rule, compute = SlowRule(), HEALTHY[kind](random.Random(seed))
        for _ in range(10):
            begun, _ended = rule.add(
                window(job(compute, ranks=ranks), dict.fromkeys(range(ranks), 0), {}).paces
            )
            assert not begun, (kind, seed)


def test_jittery_straggler_among_noisy_ranks_is_found() -> None:
    chance = random.Random(3)

    def compute(rank: int, _step: int) -> float:
        base = chance.uniform(0.28, 0.32)
        return base * chance.uniform(1.3, 1.9) if rank == 2 else base

    rule = SlowRule()
    begun = [rule.add(window(job(compute), dict.fromkeys(range(4), 0), {}).paces)[0] for _ in range(3)]
    assert begun == [set(), set(), {2}]


def test_all_ranks_of_a_slow_node_are_late() -> None:
    ranks = job(lambda rank, _step: 0.4 if rank >= 2 else 0.3)
    nodes = {0: 0, 1: 0, 2: 1, 3: 1}
    assert slow(ranks, nodes, n0=ClockOffset(), n1=ClockOffset()) == {2, 3}


def test_clock_that_is_ahead_is_no_slow_rank() -> None:
    """A constant difference of the clocks looks exactly as a straggler."""
    ahead_s = 0.2
    ranks = [
        RankArrivals(
            one.rank,
            tuple(
                GroupArrivals.of(
                    group.group,
                    [
                        (s, kind, at_s + ahead_s * (one.rank // 2), d)
                        for s, kind, at_s, d in group.operations()
                    ],
                )
                for group in one.groups
            ),
        )
        for one in job(lambda _rank, _step: 0.3)
    ]
    nodes = {0: 0, 1: 0, 2: 1, 3: 1}
    assert slow(ranks, nodes, n0=ClockOffset(), n1=ClockOffset(ahead_s, 0.001)) == set()
    assert slow(ranks, nodes, n0=ClockOffset(), n1=ClockOffset(0.0, 0.1)) == set()  # too little is known
    assert slow(ranks, nodes) == set()  # nothing is known: each node by itself
    assert slow(ranks, nodes, n0=ClockOffset(), n1=ClockOffset()) == {2, 3}  # what this guards against


def test_ranks_of_different_pipeline_stages_are_not_compared() -> None:
    first = job(lambda _rank, _step: 0.3, ranks=2)
    second = [
        RankArrivals(one.rank + 2, (GroupArrivals.of("1", one.groups[0].operations()),))
        for one in job(lambda _rank, _step: 0.4, ranks=2)
    ]
    assert slow([*first, *second]) == set()


def test_too_few_steps_tell_nothing() -> None:
    few = window(job(lambda rank, _s: 4.0 + rank, steps=15), dict.fromkeys(range(4), 0), {})
    assert (few.paces, few.unknown) == ({}, "too-few-steps")
    short = window(job(lambda rank, _s: 0.01 + rank / 100, steps=100), dict.fromkeys(range(4), 0), {})
    assert short.paces == {}


def test_without_times_of_the_device_nothing_is_told_of_nccl() -> None:
    ranks = job(lambda rank, _step: 0.4 if rank == 2 else 0.3, backend="nccl")
    assert window(ranks, dict.fromkeys(range(4), 0), {}).unknown == "no-device-times"


def test_times_of_the_device_tell_who_came_last_whatever_the_clocks() -> None:
    """With TORCH_NCCL_ENABLE_TIMING: the rank that comes last is in the operation for the shortest time."""
    made = []
    for rank in range(4):
        waited_s = 0.005 if rank == 2 else 0.105
        every = [(n, "nccl:all_reduce", 1000.0 * rank + n * 0.4, waited_s) for n in range(1, 121)]
        made.append(RankArrivals(rank, (GroupArrivals.of("0", every),)))
    assert slow(made, {rank: rank for rank in range(4)}) == {2}


def pace(share: float) -> dict[int, RankPace]:
    return {1: RankPace(1, share, 1.0, 30 if share >= 0.1 else 0, 40)}


def test_three_windows_begin_a_finding_and_three_end_it() -> None:
    rule = SlowRule()
    shares = [0.2, 0.2, 0.0, 0.2, 0.2, 0.2, 0.07, 0.01, 0.01, 0.07, 0.01, 0.01, 0.01, 0.01]
    said = [rule.add(pace(share)) for share in shares]
    assert [at for at, (begun, _) in enumerate(said) if begun] == [5]
    assert [at for at, (_, ended) in enumerate(said) if ended] == [12]


def test_job_that_became_slower_than_its_own_windows_is_told_once_and_again_when_it_recovers() -> None:
    own = OwnPace()
    windows = [0.40, 0.42, 0.41, 0.40, 0.43, 0.41, *[0.42] * 5, *[0.60] * 5, *[0.41] * 4]
    assert [at for at, step_s in enumerate(windows) if own.add(step_s)] == [13, 18]
    noisy = OwnPace()
    chance = random.Random(1)
    assert not any(noisy.add(0.4 * chance.uniform(0.8, 1.3)) for _ in range(500))
