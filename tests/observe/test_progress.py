from __future__ import annotations

import pickle
import random

import pytest

from platform_launch.observe.dumps import GroupStatus, RankTrace
from platform_launch.observe.progress import NewLines, Progress
from platform_launch.observe.snapshot import Sample, busy_share, has_moved, with_sample

HERE, THERE = (("/job/train.py", "step"),), (("/job/train.py", "load"),)


def trace(enqueued: int, completed: int, latest_s: float = 0.0) -> RankTrace:
    groups = {"0": GroupStatus("0", enqueued=enqueued, completed=completed)}
    return RankTrace(0, groups, latest_s=latest_s)


def test_enqueued_or_completed_collective_is_progress() -> None:
    progress = Progress(0.0)
    for now, counts in ((10.0, (1, 0)), (20.0, (2, 0)), (30.0, (2, 1)), (40.0, (2, 1))):
        progress.collectives({0: trace(*counts)}, now, wall=now)
    assert (progress.moved_at, progress.because) == (30.0, "collectives")
    assert progress.still_s(100.0) == 70.0


def test_time_of_the_last_operation_is_that_of_the_progress() -> None:
    """It was seen at 100, but enqueued 40 seconds earlier by the wall clock."""
    progress = Progress(0.0)
    progress.collectives({0: trace(1, 0, 900.0)}, 50.0, wall=1000.0)
    progress.collectives({0: trace(2, 0, 1010.0)}, 100.0, wall=1050.0)
    assert progress.moved_at == 60.0


def test_clock_that_was_set_back_does_not_lengthen_a_silence() -> None:
    progress = Progress(0.0)
    progress.collectives({0: trace(1, 0)}, 50.0, wall=1000.0)
    progress.collectives({0: trace(2, 0, 2000.0)}, 100.0, wall=1050.0)
    assert progress.moved_at == 100.0


def cpu(progress: Progress, *samples: tuple[float, float, object]) -> None:
    for at, used, functions in samples:
        progress.samples({0: Sample(at, 7, used, 0, functions)}, at)  # type: ignore[arg-type]


def test_cpu_time_counts_where_no_collective_is_known() -> None:
    progress = Progress(0.0)
    cpu(progress, (0.0, 0.0, None), (10.0, 9.0, None))
    assert (progress.moved_at, progress.because) == (10.0, "cpu")


def test_cpu_time_of_waiting_does_not_count() -> None:
    progress = Progress(0.0)
    cpu(progress, (0.0, 0.0, None), (10.0, 0.1, None), (100.0, 1.0, None))
    assert progress.moved_at == 0.0


def test_cpu_time_in_one_place_does_not_count() -> None:
    progress = Progress(0.0)
    cpu(progress, (0.0, 0.0, HERE), (10.0, 9.0, HERE), (20.0, 19.0, HERE))
    assert progress.moved_at == 0.0
    cpu(progress, (30.0, 29.0, THERE))
    assert progress.moved_at == 30.0


def test_days_without_progress_take_no_more_memory_than_a_minute() -> None:
    progress = Progress(0.0)
    cpu(progress, *((float(at), at / 1000, HERE if at % 12 else None) for at in range(60)))
    a_minute = len(pickle.dumps(progress))
    cpu(progress, *((float(at), at / 1000, HERE if at % 12 else None) for at in range(60, 20_000)))
    assert progress.moved_at == 0.0
    assert len(pickle.dumps(progress)) < a_minute + 100


def test_what_is_left_of_many_samples_tells_the_same_as_all() -> None:
    chance = random.Random(7)
    for _ in range(300):
        places = [None, HERE, THERE][: chance.choice((1, 2, 3))]
        every: list[Sample] = []
        kept: list[Sample] = []
        for at in range(chance.randrange(1, 12)):
            new = Sample(
                float(at), 7, chance.random() * at, chance.choice((0, 1, 2)) << 21, chance.choice(places)
            )
            every.append(new)
            kept = with_sample(kept, new)
            assert len(kept) <= 5
            with_stack = [[one for one in some if one.functions is not None] for some in (every, kept)]
            for all_of, left in ((every, kept), with_stack):
                assert (has_moved(left), busy_share(left)) == (has_moved(all_of), busy_share(all_of))


def test_where_a_rank_was_before_the_last_output_does_not_count() -> None:
    progress = Progress(0.0)
    cpu(progress, (0.0, 0.0, None), (10.0, 0.0, HERE))
    progress.output(20.0)
    cpu(progress, (30.0, 9.0, THERE), (40.0, 19.0, THERE))
    assert progress.moved_at == 20.0


def test_cpu_time_does_not_count_where_collectives_are_known() -> None:
    progress = Progress(0.0)
    progress.collectives({0: trace(1, 0)}, 1.0, wall=1.0)
    cpu(progress, (0.0, 0.0, None))
    moved = progress.moved_at
    cpu(progress, (10.0, 9.0, None))
    assert progress.moved_at == moved


def test_processes_that_are_being_started_are_progress() -> None:
    progress = Progress(0.0)
    progress.samples({}, 30.0)
    assert progress.moved_at == 30.0
    progress.samples({0: Sample(40.0, 7, 0.0, 0)}, 40.0)
    progress.samples({0: Sample(50.0, 7, 0.0, 0)}, 50.0)
    assert progress.moved_at == 40.0


@pytest.mark.parametrize(
    ("first", "then", "new"),
    [
        ("step 5 loss 0.3", "step 6 loss 0.3", True),
        ("waiting for data", "waiting for data", False),
        ("12:00:01 waiting for data", "12:05:01 waiting for data", False),
        ("waiting for 30 s", "waiting for 60 s", False),
        ("2026-01-01 still there", "2026-01-02 still there", False),
        (" 5%|# | 5/100 [00:10<01:00, 1.2it/s]", " 5%|# | 5/100 [00:20<01:00, 0.6it/s]", False),
        (" 5%|# | 5/100 [00:10<01:00, 1.2it/s]", " 6%|# | 6/100 [00:11<01:00, 1.2it/s]", True),
        ("\x1b[32mready\x1b[0m", "ready", False),
        ("", "   ", False),
    ],
)
def test_line_is_new_when_more_than_its_time_has_changed(first: str, then: str, *, new: bool) -> None:
    lines = NewLines()
    lines.novelty(first)
    assert bool(lines.novelty(then)) is new


def test_only_so_many_lines_are_remembered() -> None:
    lines = NewLines()
    lines.novelty("once")
    lines.novelty("\n".join(f"line number {number}x" for number in range(5000)))
    assert lines.novelty("once") == 1
