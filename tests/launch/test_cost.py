"""What a run cost: steps from its output as it grows, and where the time went."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.launch.cost import RunClock, StartCost, run_cost
from platform_launch.observe.steps import StepReading, StepsNamed, StepWatch
from tests.lab.waiting import until


def steps(*readings: tuple[float, int], target: int | None = None) -> StepsNamed:
    return StepsNamed(tuple(StepReading(*reading) for reading in readings), target)


def test_a_run_without_restarts() -> None:
    cost = run_cost([StartCost(20.0, 130.0, steps((30.0, 1), (130.0, 101), target=201))])
    assert (cost.steps, cost.lost_steps, cost.first_step_s) == (101, 0, 50.0)
    assert (cost.waiting_s, cost.starting_s, cost.training_s, cost.restart_s) == (20.0, 30.0, 100.0, 0.0)
    assert cost.productive_share == pytest.approx(100 / 150)
    assert (cost.steps_per_s, cost.eta_s, cost.speed_change) == (1.0, 100.0, None)
    assert cost.describe() == (
        "101 steps; the first after 50 s; 20 s waiting for nodes, 30 s starting, 1 min 40 s training; "
        "67% productive; 1 steps/s; 1 min 40 s to go"
    )


def test_a_short_run_prints_no_productive_share() -> None:
    cost = run_cost([StartCost(1.0, 2.0, steps((1.0, 1), (2.0, 3)))])
    assert cost.productive_share is not None
    assert "productive" not in cost.describe()


def test_steps_between_the_checkpoint_and_a_failure_are_lost() -> None:
    first = StartCost(10.0, 110.0, steps((10.0, 1), (110.0, 100)), hang_s=0.0)
    second = StartCost(30.0, 60.0, steps((10.0, 81), (60.0, 130)), decided_s=10.0)
    cost = run_cost([first, second])
    assert (cost.steps, cost.lost_steps, cost.restart_s, cost.starting_s) == (150, 20, 30.0, 20.0)
    assert cost.productive_share == pytest.approx(150 * (130 / 150) / 210)
    assert "150 steps, 20 of them lost by restarts" in cost.describe()
    assert "30 s restarting (10 s to decide, 20 s to connect)" in cost.describe()


def test_a_training_that_counts_from_0_to_its_last_step_did_as_many_as_it_announced() -> None:
    assert run_cost([StartCost(0.0, 60.0, steps((1.0, 0), (60.0, 240), target=240))]).steps == 240
    assert run_cost([StartCost(0.0, 60.0, steps((1.0, 0), (60.0, 239), target=240))]).steps == 240


def test_a_hang_is_no_training() -> None:
    cost = run_cost([StartCost(0.0, 400.0, steps((0.0, 1), (100.0, 11)), hang_s=300.0)])
    assert (cost.training_s, cost.hang_s) == (100.0, 300.0)


def test_a_speed_that_falls_is_seen() -> None:
    fast = [(10.0 * index, index) for index in range(1, 11)]
    slow = [(100.0 + 20 * index, 10 + index) for index in range(1, 11)]
    cost = run_cost([StartCost(0.0, 300.0, steps(*fast, *slow))])
    assert cost.speed_change == pytest.approx(-0.5)
    brief = steps(*((at_s / 10, step) for at_s, step in (*fast, *slow)))
    assert run_cost([StartCost(0.0, 30.0, brief)]).speed_change is None


def test_steps_that_were_seen_at_one_look_tell_no_speed() -> None:
    cost = run_cost([StartCost(0.0, 8.0, steps((7.0, 1), (7.00001, 5), target=20))])
    assert (cost.steps, cost.steps_per_s, cost.eta_s) == (5, None, None)


def test_an_output_without_steps_still_says_where_the_time_went() -> None:
    cost = run_cost([StartCost(5.0, 60.0)])
    assert (cost.steps, cost.productive_share, cost.first_step_s) == (None, None, None)
    assert cost.describe() == "5 s waiting for nodes, 1 min 0 s training"
    assert run_cost([]).describe() == "0 s"


def test_steps_are_read_along_from_where_the_training_begins(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("Step 900/1000 of an earlier start\n")
    watch = StepWatch(log)
    watch.start()
    with log.open("a") as file:
        file.write("Step 1/50 | loss 3\nglobal_ste")
        file.flush()
        until(lambda: bool(watch.named.readings))
        file.write("p=2\nStep 3/50\rStep 4/50\rno news\n")
    named = watch.stop()
    assert [reading.step for reading in named.readings] == [1, 4]
    assert named.target == 50


def test_a_line_that_was_begun_does_not_go_on_in_a_new_file_of_that_name(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    watch = StepWatch(log)
    watch.start()
    log.write_text("Step 1/50 | loss 3, and much else\nglobal_step=2")
    until(lambda: bool(watch.named.readings))
    log.write_text("9 of a new file\n")
    assert [reading.step for reading in watch.stop().readings] == [1]


def test_a_long_run_keeps_few_readings_its_first_and_its_last_among_them(tmp_path: Path) -> None:
    now = 0.0
    watch = StepWatch(tmp_path / "none.log", lambda: now)
    for now in map(float, range(1, 5001)):
        watch._record_step(int(now), [])
    readings = watch.named.readings
    assert len(readings) <= 130
    assert (readings[0].step, readings[-1].step) == (1, 5000)
    assert [reading.step for reading in readings] == sorted({reading.step for reading in readings})


def test_a_run_is_counted_while_it_goes_on(tmp_path: Path) -> None:
    now = 100.0
    log = tmp_path / "train.log"
    log.touch()
    clock = RunClock(lambda: now)
    assert clock.so_far().describe() == "0 s"
    now += 5
    clock.begin(log)
    now += 60
    assert clock.so_far().describe() == "5 s waiting for nodes, 1 min 0 s training"
    clock.hanging(20.0)
    assert clock.so_far().hang_s == 20.0
    clock.end()
    clock.end()  # a training that has ended ends once
    now += 3
    clock.decided()
    now += 4
    clock.begin(log)
    now += 10
    clock.end()
    total = clock.so_far()
    assert clock.restarts == 1
    assert (total.waiting_s, total.restart_s, total.hang_s, total.training_s) == (5.0, 7.0, 20.0, 50.0)
    assert total.deciding_s == 3.0


def test_after_the_end_nothing_is_left_to_do() -> None:
    start = StartCost(20.0, 130.0, steps((30.0, 1), (130.0, 101), target=201))
    clock = RunClock()
    clock._starts.append(start)
    assert (run_cost([start]).eta_s, clock.so_far().eta_s) == (100.0, None)


def test_a_hang_counts_while_it_lasts_and_no_longer(tmp_path: Path) -> None:
    now = 0.0
    clock = RunClock(lambda: now)
    clock.begin(tmp_path / "none.log")
    now = 400.0
    clock.hanging(300.0)
    now = 500.0
    clock.hanging(400.0)  # the same one, reported again
    assert clock.so_far().hang_s == 400.0
    clock.hanging(None)
    now = 600.0
    assert (clock.so_far().hang_s, clock.so_far().training_s) == (400.0, 200.0)
    clock.end()
    assert clock.so_far().hang_s == 400.0


def test_what_slow_ranks_cost_is_part_of_the_training(tmp_path: Path) -> None:
    now = 0.0
    clock = RunClock(lambda: now)
    clock.begin(tmp_path / "none.log")
    now = 400.0
    clock.slowed(30.0)
    clock.slowed(42.0)
    clock.end()
    clock.begin(tmp_path / "none.log")
    clock.slowed(8.0)
    cost = clock.so_far()
    assert (cost.slow_s, cost.training_s) == (50.0, 400.0)
    assert "50 s waiting for slow ranks" in cost.describe()
