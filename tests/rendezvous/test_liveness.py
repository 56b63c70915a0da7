from __future__ import annotations

from platform_launch.rendezvous.liveness import Liveness, SilenceClock


def observed(*counts: dict[int, int]) -> Liveness[int]:
    """Return the silence measured at observations one second apart."""
    liveness: Liveness[int] = Liveness()
    for second, seen in enumerate(counts):
        liveness.observe(seen, float(second))
    return liveness


def test_growing_heartbeat_is_no_silence() -> None:
    assert observed({0: 1}, {0: 2}, {0: 3}).silent_s(0) == 0.0


def test_silence_accumulates_until_the_next_heartbeat() -> None:
    liveness = observed({0: 1}, {0: 1}, {0: 1})
    assert liveness.silent_s(0) == 2.0
    liveness.observe({0: 2}, 3.0)
    assert liveness.silent_s(0) == 0.0


def test_repeated_old_heartbeat_counts_as_silence() -> None:
    liveness = observed({0: 5}, {0: 3}, {0: 4}, {0: 5})
    assert liveness.silent_s(0) == 3.0
    liveness.observe({0: 6}, 4.0)
    assert liveness.silent_s(0) == 0.0


def test_pause_of_the_observer_is_not_silence_of_others() -> None:
    """Stopped for an hour: the heartbeats of that hour could not be read."""
    liveness = observed({0: 1, 1: 1})
    liveness.observe({0: 1, 1: 1}, 3600.0)
    assert liveness.silent_s(0) == 2.0


def test_unwatched_node_is_forgotten() -> None:
    liveness = observed({0: 1, 1: 1}, {0: 1})
    assert (liveness.silent_s(0), liveness.silent_s(1)) == (1.0, 0.0)


def test_silence_without_a_count_accumulates_until_the_next_message() -> None:
    clock = SilenceClock(100.0, 15.0)
    assert clock.observe(103.0) == 3.0
    assert clock.observe(110.0) == 10.0
    clock.reset(111.0)
    assert clock.observe(112.0) == 1.0
    assert clock.observe(3712.0) == 16.0
