from __future__ import annotations

from platform_launch.rendezvous.ending import stop_grace_s


def test_node_with_gpus_has_time_to_write_its_flight_recorder_dumps() -> None:
    assert stop_grace_s(8) >= 15.0
    assert stop_grace_s(0) < 3.0
