from __future__ import annotations

from platform_launch.rendezvous.ending import stop_grace_s


def test_a_node_with_gpus_gets_the_time_to_write_its_flight_recorders_out() -> None:
    assert stop_grace_s(8) >= 15.0
    assert stop_grace_s(0) < 3.0
