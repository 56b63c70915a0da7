from __future__ import annotations

from platform_launch.rollcall.pulse import Pulse


def test_a_beat_that_changes_is_no_silence() -> None:
    pulse: Pulse[int] = Pulse(longest_look_s=2.0)
    for beat in (b"1", b"2", b"3"):
        pulse.observe({0: beat}, 1.0)
    assert pulse.silent_s(0) == 0.0


def test_silence_adds_up_and_ends_with_the_next_beat() -> None:
    pulse: Pulse[int] = Pulse(longest_look_s=2.0)
    for beat in (b"1", b"1", b"1"):
        pulse.observe({0: beat}, 1.0)
    assert pulse.silent_s(0) == 2.0
    assert pulse.silent_for(2.0) == [0]
    pulse.observe({0: b"2"}, 1.0)
    assert pulse.silent_for(0.5) == []


def test_an_observer_that_stood_still_does_not_blame_the_others() -> None:
    """Stopped for an hour: the beats of that hour could not be read."""
    pulse: Pulse[int] = Pulse(longest_look_s=2.0)
    pulse.observe({0: b"1", 1: b"1"}, 1.0)
    pulse.observe({0: b"1", 1: b"1"}, 3600.0)
    assert pulse.silent_s(0) == 2.0


def test_a_node_that_is_no_longer_watched_is_forgotten() -> None:
    pulse: Pulse[int] = Pulse(longest_look_s=2.0)
    pulse.observe({0: b"1", 1: b"1"}, 1.0)
    pulse.observe({0: b"1"}, 1.0)
    assert pulse.silent_for(0.5) == [0]
    assert pulse.silent_s(1) == 0.0
