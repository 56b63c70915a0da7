"""The watch for slow ranks: what it reports of one, where it is and why, and that it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from platform_launch.launch.peers import (
    ArrivalsAnswer,
    ArrivalsQuestion,
    PaceNotice,
    SamplesAnswer,
    SamplesQuestion,
    SlowNotice,
    pack,
    unpack,
)
from platform_launch.observe.arrivals import ClockOffset
from platform_launch.observe.dumps import operations_since
from platform_launch.observe.pace_probe import NodeUse, _cpu_of_all, _rival
from platform_launch.observe.slow_ranks import (
    NodeArrivals,
    PaceChange,
    RankSamples,
    SlowFinding,
    SlowRanks,
    described,
)
from platform_launch.observe.words import english
from tests.lab.waiting import LIMIT_S, until
from tests.observe.dump_files import document, entry, gloo
from tests.observe.test_arrivals import Compute, job

READ, STEP = "/job/train.py:21 in read_batch", "/job/train.py:56 in step"
SLOW = RankSamples(1, 20, {READ: 12, STEP: 1}, {"data": 2})
OTHER = RankSamples(0, 20, {STEP: 2}, {"collective": 17})
FINDING = SlowFinding((1,), 1, "gn7", False, 0.09, 0.52, 38, 40)


class Job:
    """A job of two nodes with two ranks each, whose pace is as ``compute`` says; and what was reported."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.reported: SimpleQueue[tuple[SlowFinding, bool]] = SimpleQueue()
        self.lost_s: list[float] = []
        self.watch = SlowRanks(
            0,
            lambda _since_s: self._node(0),
            self._others,
            self._sample,
            lambda finding, begins: self.reported.put((finding, begins)),
            lambda _change: None,
            self.lost_s.append,
            quiet_s=0.0,
            period_s=0.01,
        )

    def _node(self, node: int) -> NodeArrivals:
        ranks = tuple(one for one in job(self.compute) if one.rank // 2 == node)
        return NodeArrivals(f"gn{node}", "", ranks, ClockOffset(0.0, 0.001))

    def _others(self, _since_s: float) -> dict[int, NodeArrivals]:
        return {1: self._node(1)}

    def _sample(self, ranks: Sequence[int]) -> list[RankSamples]:
        return [*(replace(SLOW, rank=rank) for rank in ranks), OTHER]


def test_slow_rank_is_reported_when_it_begins_and_when_it_ends() -> None:
    one = Job(lambda rank, _step: 0.4 if rank == 2 else 0.3)
    one.watch.start()
    try:
        finding, begins = one.reported.get(timeout=LIMIT_S)
        assert (finding.ranks, finding.node_rank, finding.whole_node, begins) == ((2,), 1, False, True)
        assert english(finding.sentence()) == (
            "rank 2 (node 1, gn1) makes each step 32% longer (0.413 s instead of 0.313 s), mostly at "
            "/job/train.py:21 in read_batch (12 of 20 samples; other ranks 0)"
        )
        assert [known.ranks for known in one.watch.current()] == [(2,)]
        assert one.lost_s[0] == pytest.approx(0.1 * 119, rel=0.01)
        one.compute = lambda _rank, _step: 0.3
        finding, begins = one.reported.get(timeout=LIMIT_S)
        assert (finding.ranks, begins) == ((2,), False)
        assert one.watch.current() == []
    finally:
        one.watch.stop()


def test_node_whose_ranks_are_all_late_is_named() -> None:
    one = Job(lambda rank, _step: 0.4 if rank >= 2 else 0.3)
    one.watch.start()
    try:
        finding, _ = one.reported.get(timeout=LIMIT_S)
    finally:
        one.watch.stop()
    assert (finding.ranks, finding.whole_node) == ((2, 3), True)
    assert english(finding.sentence()).startswith("node 1 (gn1), all its ranks, makes each step 32% longer")


def test_who_asks_gets_an_answer_at_once() -> None:
    found, unknown = Job(lambda rank, _step: 0.4 if rank == 2 else 0.3).watch.find()
    assert ([one.ranks for one in found], unknown) == ([(2,)], "")
    assert Job(lambda _rank, _step: 0.3).watch.find() == ([], "")
    assert Job(lambda _rank, _step: 0.001).watch.find() == ([], "too-few-steps")


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (replace(SLOW, throttled=0.8), "throttled"),
        (replace(SLOW, queued=0.4), "queued"),
        (replace(SLOW, queued=0.4, rival="cc1plus (pid 812)"), "queued"),
        (replace(SLOW, device="GPU 1: its clock is held down", throttled=0.8), "device"),
        (replace(SLOW, stolen=0.2), "stolen"),
        (replace(SLOW, disk_faults_per_s=300.0), "swapped"),
        (replace(SLOW, resent=0.03, doing={"data": 15}), "resent"),
        (replace(SLOW, doing={"data": 15}), "data"),
        (replace(SLOW, computed=0.9), "computing"),
        (SLOW, ""),
    ],
)
def test_reason_is_named_if_the_samples_show_one(samples: RankSamples, reason: str) -> None:
    assert described(FINDING, samples, [OTHER]).reason == reason
    assert english(described(FINDING, samples, [OTHER]).sentence())
    # The whole host has it: it tells nothing of this rank.
    same = replace(OTHER, queued=0.4, stolen=0.2, disk_faults_per_s=300.0, resent=0.03)
    whole = replace(SLOW, queued=0.4, stolen=0.2, disk_faults_per_s=300.0, resent=0.03)
    assert described(FINDING, whole, [same]).reason == ""


def test_rival_is_named_with_what_it_takes() -> None:
    slow = replace(SLOW, queued=0.4, rival="cc1plus (pid 812)")
    assert english(described(FINDING, slow, [OTHER]).sentence()).endswith(
        "other processes have its processor for 40% of the time, mostly cc1plus (pid 812)"
    )


def test_process_that_takes_the_processors_of_a_rank_is_found(tmp_path: Path) -> None:
    """Both are bound to one processor; an idle rank beside a process that sleeps has no rival."""
    (tmp_path / "observe").mkdir()
    bind = f"import os, time; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}]); "
    rank = subprocess.Popen([sys.executable, "-c", bind + "time.sleep(600)"])
    rival = subprocess.Popen([sys.executable, "-c", bind + "\nwhile True: pass"])
    try:
        before, begin = _cpu_of_all(), time.monotonic()
        until(lambda: (_cpu_of_all()[rival.pid][1] - before[rival.pid][1]) > 0.2)
        after = {pid: known for pid, known in _cpu_of_all().items() if pid in (rank.pid, rival.pid)}
        assert _rival(rank.pid, before, after, time.monotonic() - begin).endswith(f"(pid {rival.pid})") or (
            after[rival.pid][1] - before[rival.pid][1] < 0.25 * (time.monotonic() - begin)
        ), "on a crowded machine it has too little to be named"
        assert _rival(rank.pid, after, after, 1.0) == ""
    finally:
        rank.kill()
        rival.kill()
        rank.wait()
        rival.wait()


def test_node_counts_steal_and_segments_that_were_sent_again() -> None:
    later = NodeUse(2000, 150, 10_900, 40)
    used = later.since(NodeUse(1000, 50, 9900, 10))
    assert (used.stolen, used.resent) == (0.1, 0.03)
    assert NodeUse(0, 0, 9, 9).resent == 0.0, "too few to tell"
    assert NodeUse.read(os.getpid()).ticks > 0
    assert NodeUse.read(os.getpid()).sent > 0
    assert NodeUse.read(2**30) == NodeUse()


def test_place_where_the_others_are_as_often_is_not_named() -> None:
    assert described(FINDING, SLOW, [replace(OTHER, places={READ: 12})]).place == ""


def test_what_travels_comes_back_equal() -> None:
    arrivals = NodeArrivals("gn7", "boot", tuple(job(lambda _rank, _step: 0.3)), ClockOffset(1.5, 0.01))
    for message in (
        ArrivalsQuestion(5.0),
        ArrivalsAnswer(arrivals),
        SamplesQuestion((1, 2)),
        SamplesAnswer((SLOW, OTHER)),
        SlowNotice(FINDING, True),
        PaceNotice(PaceChange(True, 0.6, 0.4)),
    ):
        assert unpack(pack(message)) == message


def test_operations_of_a_dump_are_read_with_their_times() -> None:
    one, two = entry(6, backend="gloo"), entry(7, "barrier", backend="gloo")
    two["duration_ms"] = 12.5
    dump = document([entry(5, p2p=True, backend="gloo"), one, two], status={0: (7, 7)})
    (group,) = (found := operations_since(gloo(dump), 0.0))
    assert [(number, kind, round(at_s), took_s) for number, kind, at_s, took_s in found[group]] == [
        (6, "gloo:all_reduce [[8]]", 1_700_000_000, 0.0),
        (7, "gloo:barrier [[8]]", 1_700_000_000, 0.0125),
    ]
    assert operations_since(gloo(dump), 1.8e9) == {}
