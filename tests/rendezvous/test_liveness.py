from __future__ import annotations

from platform_launch.rendezvous.liveness import Liveness


def test_a_heartbeat_that_grows_is_no_silence() -> None:
    liveness: Liveness[int] = Liveness()
    for count in (1, 2, 3):
        liveness.observe({0: count}, 1.0)
    assert liveness.silent_s(0) == 0.0


def test_silence_adds_up_and_ends_with_the_next_heartbeat() -> None:
    liveness: Liveness[int] = Liveness()
    for count in (1, 1, 1):
        liveness.observe({0: count}, 1.0)
    assert liveness.silent_s(0) == 2.0
    liveness.observe({0: 2}, 1.0)
    assert liveness.silent_s(0) == 0.0


def test_an_old_heartbeat_shown_again_is_silence() -> None:
    liveness: Liveness[int] = Liveness()
    for count in (5, 3, 4, 5):
        liveness.observe({0: count}, 1.0)
    assert liveness.silent_s(0) == 3.0
    liveness.observe({0: 6}, 1.0)
    assert liveness.silent_s(0) == 0.0


def test_an_observer_that_stood_still_does_not_blame_the_others() -> None:
    """Stopped for an hour: the heartbeats of that hour could not be read."""
    liveness: Liveness[int] = Liveness(longest_look_s=2.0)
    liveness.observe({0: 1, 1: 1}, 1.0)
    liveness.observe({0: 1, 1: 1}, 3600.0)
    assert liveness.silent_s(0) == 2.0


def test_a_node_that_is_no_longer_watched_is_forgotten() -> None:
    liveness: Liveness[int] = Liveness()
    liveness.observe({0: 1, 1: 1}, 1.0)
    liveness.observe({0: 1}, 1.0)
    assert (liveness.silent_s(0), liveness.silent_s(1)) == (1.0, 0.0)
