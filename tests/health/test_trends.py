"""What several readings tell, of one node and between nodes; and when it is said."""

from __future__ import annotations

from platform_launch.hardware.rdma import PortHealth
from platform_launch.health.comparison import NodeSample, compare, sample
from platform_launch.health.conditions import CALM_S, Conditions
from platform_launch.health.faults import faults
from platform_launch.health.reading import KEPT_S, DeviceHistory
from platform_launch.health.trends import trends
from tests.health.devices import gpu, history, port, reading

HOT, CAPPED = 0x40, 0x4


def test_a_clock_held_down_most_of_the_time_is_named_with_the_reason() -> None:
    [found] = trends(history(*[(gpu(1, clock_reasons=HOT if n % 3 else CAPPED),) for n in range(30)]))
    assert (found.id, found.where) == ("gpu-slowdown", "GPU 1")
    assert "heat" in found.what


def test_the_power_cap_and_a_short_slowdown_are_normal() -> None:
    assert trends(history(*[(gpu(clock_reasons=CAPPED),) for _ in range(40)])) == []
    assert trends(history(*[(gpu(clock_reasons=HOT),) for _ in range(4)])) == []
    assert trends(history(*[(gpu(clock_reasons=HOT if n < 10 else CAPPED),) for n in range(40)])) == []


def test_nvlink_errors_that_come_every_minute_are_a_trend_and_a_burst_is_none() -> None:
    steady = history(*[(gpu(nvlink_errors=n),) for n in range(80)])
    assert [found.id for found in trends(steady)] == ["nvlink-errors"]
    assert trends(history(*[(gpu(nvlink_errors=min(n, 5) * 1000),) for n in range(80)])) == []


def test_a_link_that_comes_and_goes_is_named() -> None:
    flapping = history(*[(port(link_downed=n // 10, link_error_recovery=1),) for n in range(40)])
    assert [(found.id, found.where) for found in trends(flapping)] == [("rdma-port-flaps", "mlx5_0:1")]
    assert trends(history(*[(port(link_downed=7),) for _ in range(40)])) == []


def test_a_port_that_was_gone_for_a_moment_did_not_flap_as_often_as_ever() -> None:
    gone = (port(state=""),)
    assert trends(history(gone, *[(port(link_downed=57),) for _ in range(40)])) == []
    assert trends(history(*[(port(link_downed=57),) for _ in range(40)], gone)) == []


def test_a_history_keeps_half_an_hour_and_its_first_reading() -> None:
    past = history(*[(gpu(),) for _ in range(500)])
    assert past.first is not None
    assert past.first.at_s == 0
    assert len(past.within(10 * KEPT_S)) == KEPT_S / 15 + 1


def test_asking_often_costs_no_memory() -> None:
    past = history(*[(gpu(),) for _ in range(5000)], step_s=0.5)
    assert past.last is not None
    assert past.last.at_s == 4999 * 0.5
    assert len(past.within(KEPT_S)) < 150


def _node(rank: int, clock_mhz: int = 1900, use: int = 98, **counters: int) -> NodeSample:
    past = history(
        *[
            (
                gpu(sm_clock_mhz=clock_mhz, utilization_percent=use),
                PortHealth("mlx5_0", 1, "ACTIVE", {name: n * value for name, value in counters.items()}),
            )
            for n in range(21)
        ]
    )
    return sample(past, rank, f"node{rank}")


def test_a_gpu_at_half_of_its_peers_clock_is_slow() -> None:
    nodes = [*(_node(rank) for rank in range(7)), _node(7, clock_mhz=1000)]
    [(rank, found)] = compare(nodes)
    assert (rank, found.id, found.where) == (7, "gpu-slow", "GPU 0")


def test_gpus_that_idle_are_not_slow_and_two_nodes_cannot_tell() -> None:
    assert compare([*(_node(rank) for rank in range(7)), _node(7, clock_mhz=300, use=3)]) == []
    assert compare([_node(0), _node(1, clock_mhz=1000)]) == []


def test_a_port_with_retransmissions_that_others_lack_is_named() -> None:
    nodes = [*(_node(rank, local_ack_timeout_err=1) for rank in range(7)), _node(7, local_ack_timeout_err=50)]
    [(rank, found)] = compare(nodes)
    assert (rank, found.id, found.where) == (7, "rdma-port-errors", "mlx5_0:1")


def test_errors_that_all_ports_have_are_nobodys() -> None:
    assert compare([_node(rank, out_of_sequence=500) for rank in range(8)]) == []


def test_a_training_that_has_just_begun_is_not_compared() -> None:
    young = sample(history((gpu(sm_clock_mhz=100),), (gpu(sm_clock_mhz=100),)), 3, "node3")
    assert [one.busy_clock_mhz for one in young.gpus] == [None]


def test_a_line_when_something_begins_and_when_it_ends_and_none_between() -> None:
    conditions, said = Conditions(), []
    past = DeviceHistory()
    for n in range(40):
        past.add(reading(gpu(0, rows_pending=5 <= n < 20 and n % 2 == 0), at_s=n * 15.0))
        assert past.last is not None
        begun, ended = conditions.update(faults(past.last, past.first), n * 15.0)
        said += [("begin", n, finding.id) for finding in begun] + [("end", n, c.finding.id) for c in ended]
    assert said == [("begin", 6, "gpu-rows-pending"), ("end", 18 + CALM_S / 15, "gpu-rows-pending")]
    assert conditions.now == ()
