"""Start when free, holds until a date, other people's processes on GPUs, groups that hardly use theirs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.refused import RequestRefused
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings, NewGroup
from platform_launch.procguard.api.wire import ForeignGpuProcess, GpuReport, WorkerReport, WorkerState
from platform_launch.procguard.control.history import IdleWatch
from platform_launch.procguard.core.group import Group
from platform_launch.procguard.core.queue import allot
from platform_launch.procguard.core.registry import WorkerSnapshot
from platform_launch.procguard.database import serving
from tests.procguard.cluster import Cluster

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with serving(f"sqlite:///{tmp_path / 'procguard.db'}") as database:
        yield Cluster(database.store)


def queued(cluster: Cluster, name: str, workers: int, nodes: str = "", **settings: Any) -> None:
    wanted = GroupSettings(command="train", queue_workers=workers, queue_nodes=nodes, **settings)
    cluster.control.create_group(NewGroup(name=name, settings=wanted), "ann")
    cluster.control.queue(name, "ann")


def nodes(cluster: Cluster, *names: str, workers: int = 1) -> None:
    for name in names:
        cluster.join(name, workers)
        cluster.beat(name, *(WorkerReport(number=n, state=WorkerState.IDLE) for n in range(workers)))


def phase(cluster: Cluster, name: str) -> GroupPhase:
    return cluster.control.queries.group(name).phase


def run_through(cluster: Cluster, name: str, exit_code: int = 0) -> None:
    """Let a group's workers be ready, run and end."""
    shape = cluster.control.queries.group(name)
    ended = {"exit_code": exit_code, "ended_s_ago": 0.0, "verdict": "seen"}
    for state in (WorkerState.READY, WorkerState.RUNNING, WorkerState.EXITED):
        about: dict[str, Any] = ended if state is WorkerState.EXITED else {}
        for worker in shape.workers:
            node = worker.rpartition("-")[0]
            cluster.say(node, state, shape.generation, **about)
        cluster.control.tick()


def test_a_queued_group_starts_as_a_whole_when_enough_workers_are_free(cluster: Cluster) -> None:
    nodes(cluster, "gn6", "gn7")
    queued(cluster, "train", 3)
    cluster.control.tick()
    shape = cluster.control.queries.group("train")
    assert (shape.phase, shape.queue_place, shape.workers) == (GroupPhase.QUEUED, 1, [])
    nodes(cluster, "gn8")
    cluster.control.tick()
    shape = cluster.control.queries.group("train")
    assert (shape.phase, shape.queue_place) == (GroupPhase.PREPARING, None)
    assert shape.workers == ["gn6-0", "gn7-0", "gn8-0"]
    assert cluster.say("gn7").environment["MASTER_ADDR"] == "gn6", "nobody knew the nodes before"
    run_through(cluster, "train")
    assert phase(cluster, "train") is GroupPhase.FINISHED
    cluster.control.tick()
    shape = cluster.control.queries.group("train")
    assert (shape.phase, shape.workers) == (GroupPhase.FINISHED, []), "its workers are free again"
    events = [event.action for event in cluster.control.queries.events(limit=10)]
    assert events[:2] == ["released-workers", "finished"]
    cluster.control.queue("train", "bob")
    cluster.control.tick()
    assert cluster.control.queries.group("train").run_number == 2


def test_the_queue_outlives_the_server_and_can_be_left(cluster: Cluster) -> None:
    queued(cluster, "train", 1)
    cluster.kill_and_start()
    assert phase(cluster, "train") is GroupPhase.QUEUED
    cluster.control.stop("train", "ann")
    assert phase(cluster, "train") is GroupPhase.IDLE
    nodes(cluster, "gn6")
    cluster.control.tick()
    assert phase(cluster, "train") is GroupPhase.IDLE
    cluster.control.create_group(NewGroup(name="other"), "ann")
    with pytest.raises(RequestRefused, match="how many workers"):
        cluster.control.queue("other", "ann")
    cluster.control.queue("train", "ann")
    with pytest.raises(RequestRefused, match="is queued or running"):
        cluster.control.move(["gn6-0"], "train", "ann")
    cluster.control.stop("train", "ann")
    cluster.control.move(["gn6-0"], "train", "ann")
    with pytest.raises(RequestRefused, match="its own workers"):
        cluster.control.queue("train", "ann")


def test_who_came_first_is_served_first_and_not_overtaken(cluster: Cluster) -> None:
    queued(cluster, "large", 3)
    queued(cluster, "small", 1, nodes="gn*")
    queued(cluster, "elsewhere", 1, nodes="cpu*")
    nodes(cluster, "gn6", "cpu1")
    cluster.control.tick()
    assert phase(cluster, "small") is GroupPhase.QUEUED, "what the large one could use is kept for it"
    assert phase(cluster, "elsewhere") is GroupPhase.QUEUED
    assert cluster.control.queries.group("small").queue_place == 2
    cluster.control.stop("large", "ann")
    cluster.control.tick()
    assert phase(cluster, "small") is phase(cluster, "elsewhere") is GroupPhase.PREPARING


def test_workers_are_taken_from_as_few_nodes_as_possible_and_by_pattern() -> None:
    def group(name: str, workers: int, **settings: Any) -> Group:
        wanted = GroupSettings(queue_workers=workers, **settings)
        return Group(name=name, settings=wanted, phase=GroupPhase.QUEUED, phase_since=AT, queued_at=AT)

    names = [
        WorkerName(node, number) for node, count in (("a", 1), ("b", 4), ("c", 2)) for number in range(count)
    ]
    free = {name: WorkerSnapshot(name, labels=("h100",) if name.node == "c" else ("a100",)) for name in names}
    assert {worker.node for worker in allot([group("g", 4)], free)["g"]} == {"b"}
    assert {worker.node for worker in allot([group("g", 2, queue_nodes="a, c")], free)["g"]} == {"c"}
    assert allot([group("g", 2, queue_nodes="x*")], free) == {}
    assert {worker.node for worker in allot([group("g", 2, queue_nodes="h1*")], free)["g"]} == {"c"}
    assert allot([group("g", 3, queue_nodes="h100")], free) == {}
    launchers = allot([group("g", 3, kind="node")], free)["g"]
    assert [str(worker) for worker in launchers] == ["a-0", "b-0", "c-0"]
    both = allot([group("g", 4), group("h", 3)], free)
    assert not {*both["g"]} & {*both["h"]}


@pytest.mark.parametrize("why", ["drained", "silent", "busy", "held"])
def test_what_cannot_start_is_not_free(cluster: Cluster, why: str) -> None:
    nodes(cluster, "gn6")
    gpu = GpuReport(index=0)
    if why == "drained":
        cluster.control.drain("gn6", True, "ann")
    elif why == "silent":
        cluster.wait(20)
    elif why == "busy":
        cluster.say("gn6", WorkerState.RUNNING, 3)
    else:
        held = [ForeignGpuProcess(gpu=0, pid=4711, user="eve", name="python", memory_gib=30.5)]
        report = WorkerReport(number=0, state=WorkerState.IDLE, gpus=(gpu,))
        cluster.answer("gn6", report, gpu_processes=held)
    queued(cluster, "train", 1)
    cluster.control.tick()
    assert phase(cluster, "train") is GroupPhase.QUEUED


def test_a_hold_ends_with_a_notice_before(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(timezone.utc)
    monkeypatch.setattr(cluster.control._clock, "now", lambda: now)
    cluster.running("gn6", "gn7", hold_until=now + timedelta(hours=3))
    cluster.control.tick()
    assert "hold-ends" not in [event.action for event in cluster.control.queries.events()]
    now += timedelta(hours=2, minutes=30)
    for _ in range(3):
        cluster.control.tick()
    assert [event.action for event in cluster.control.queries.events()].count("hold-ends") == 1
    assert phase(cluster, "g") is GroupPhase.RUNNING
    now += timedelta(hours=1)
    cluster.control.tick()
    assert phase(cluster, "g") is GroupPhase.STOPPING
    for node in ("gn6", "gn7"):
        cluster.say(node, WorkerState.EXITED, 1, exit_code=143, stop_requested=True, ended_s_ago=0.0)
    cluster.control.tick()
    cluster.control.tick()
    shape = cluster.control.queries.group("g")
    assert (shape.phase, shape.workers, shape.settings.hold_until) == (GroupPhase.STOPPED, [], None)


def test_other_peoples_processes_on_the_gpus_are_listed_and_refuse_a_start(cluster: Cluster) -> None:
    cluster.group_of("gn6")
    held = [
        ForeignGpuProcess(gpu=0, pid=4711, user="eve", name="python", memory_gib=30.5),
        ForeignGpuProcess(gpu=3, pid=4712, user="bob", name="python", memory_gib=1.0),
    ]
    report = WorkerReport(number=0, state=WorkerState.IDLE, gpus=(GpuReport(index=0),))
    cluster.answer("gn6", report, gpu_processes=held)
    assert cluster.control.queries.node("gn6").gpu_processes == held
    with pytest.raises(RequestRefused) as refused:
        cluster.control.start("g", "ann")
    (problem,) = refused.value.refusal.problems
    assert problem.code == "gpus-held"
    assert problem.values["processes"] == "gn6 GPU 0: eve python (pid 4711, 30.5 GiB)", "not those of GPU 3"
    settings = cluster.control.queries.group("g").settings
    cluster.control.change_settings("g", settings.but(shared_gpus=True), "ann")
    assert [note.code for note in cluster.control.queries.preview("g").notes] == ["gpus-held"]
    assert cluster.control.start("g", "ann").changed


def test_a_process_that_cannot_be_seen_from_here_is_only_noted(cluster: Cluster) -> None:
    """In a container the driver tells pids of the host: it could be anybody's, also this node's own."""
    cluster.group_of("gn6")
    report = WorkerReport(number=0, state=WorkerState.IDLE, gpus=(GpuReport(index=0),))
    cluster.answer("gn6", report, gpu_processes=[ForeignGpuProcess(gpu=0, pid=99)])
    preview = cluster.control.queries.preview("g")
    assert (preview.problems, [note.code for note in preview.notes]) == ((), ["gpus-held"])


@pytest.mark.parametrize("stops", [False, True])
def test_a_group_that_hardly_uses_its_gpus_is_reported_once(cluster: Cluster, stops: bool) -> None:
    cluster.running("gn6", idle_percent=10, idle_minutes=30, idle_stop=stops)
    now = 0.0
    watch = IdleWatch(cluster.control, lambda: now)
    for minute, percent in enumerate([3.0] * 20 + [50.0] + [None] * 40 + [5.0] * 45):
        now = 60.0 * minute
        watch.check({"g": percent})
    actions = [event.action for event in cluster.control.queries.events()]
    assert actions.count("idle") == 1
    assert phase(cluster, "g") is (GroupPhase.STOPPING if stops else GroupPhase.RUNNING)


@pytest.mark.parametrize(
    ("moved_s_ago", "fails"),
    [(90.0, True), (5.0, False), (None, False)],
    ids=["stalled", "moving", "unknown"],
)
def test_silence_is_borne_longer_while_the_others_make_progress(
    cluster: Cluster, moved_s_ago: float | None, fails: bool
) -> None:
    generation = cluster.running("gn6", "gn7", fail_after_s=300)
    for _ in range(100):
        cluster.clock_s += 1
        cluster.say("gn6", WorkerState.RUNNING, generation, moved_s_ago=moved_s_ago)
        cluster.control.tick()
    assert (phase(cluster, "g") is GroupPhase.STOPPING) is fails
    for _ in range(250):
        cluster.clock_s += 1
        cluster.say("gn6", WorkerState.RUNNING, generation, moved_s_ago=moved_s_ago)
        cluster.control.tick()
    assert phase(cluster, "g") is not GroupPhase.RUNNING, "300 s at most"
