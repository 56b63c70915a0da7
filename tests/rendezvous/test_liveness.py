from __future__ import annotations

from platform_launch.rendezvous.liveness import Liveness, SilenceClock


def observed(*counts: dict[int, int]) -> Liveness[int]:
    """Return what was seen by looks a second apart."""
    liveness: Liveness[int] = Liveness()
    for second, seen in enumerate(counts):
        liveness.observe(seen, float(second))
    return liveness


def test_a_heartbeat_that_grows_is_no_silence() -> None:
    assert observed({0: 1}, {0: 2}, {0: 3}).silent_s(0) == 0.0


def test_silence_adds_up_and_ends_with_the_next_heartbeat() -> None:
    liveness = observed({0: 1}, {0: 1}, {0: 1})
    assert liveness.silent_s(0) == 2.0
    liveness.observe({0: 2}, 3.0)
    assert liveness.silent_s(0) == 0.0


def test_an_old_heartbeat_shown_again_is_silence() -> None:
    liveness = observed({0: 5}, {0: 3}, {0: 4}, {0: 5})
    assert liveness.silent_s(0) == 3.0
    liveness.observe({0: 6}, 4.0)
    assert liveness.silent_s(0) == 0.0


def test_an_observer_that_stood_still_does_not_blame_the_others() -> None:
    """Stopped for an hour: the heartbeats of that hour could not be read."""
    liveness = observed({0: 1, 1: 1})
    liveness.observe({0: 1, 1: 1}, 3600.0)
    assert liveness.silent_s(0) == 2.0


def test_a_node_that_is_no_longer_watched_is_forgotten() -> None:
    liveness = observed({0: 1, 1: 1}, {0: 1})
    assert (liveness.silent_s(0), liveness.silent_s(1)) == (1.0, 0.0)


def test_a_silence_of_whoever_has_no_count_adds_up_until_the_next_sign_of_life() -> None:
    clock = SilenceClock(100.0, 15.0)
    assert clock.observe(103.0) == 3.0
    assert clock.observe(110.0) == 10.0
    clock.reset(111.0)
    assert clock.observe(112.0) == 1.0
    assert clock.observe(3712.0) == 16.0
