"""Control on a real database: what people ask, what agents say, and what comes back after kill -9."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from platform_launch.errors import UnfitNodeError
from platform_launch.procguard.api.refused import NotFound, RequestRefused, Unavailable
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.history import EventFilter
from platform_launch.procguard.api.shapes.workers import WorkerStatus
from platform_launch.procguard.api.wire import (
    GpuReport,
    Heartbeat,
    MachineReport,
    OrderAction,
    QuarantineReport,
    WorkerOrder,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.database import serving
from platform_launch.procguard.server.routes.history import csv_lines
from platform_launch.sentences import Sentence, Value, quoted, sentence
from tests.procguard.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with serving(f"sqlite:///{tmp_path}/procguard.db") as database:
        yield Cluster(database.store)


def actions(cluster: Cluster) -> list[str]:
    return [event.action for event in reversed(cluster.control.queries.events())]


def test_a_group_from_its_making_to_its_end(cluster: Cluster) -> None:
    cluster.group_of("gn6", "gn7")
    control = cluster.control
    assert [str(place.worker) for place in control.queries.preview("g").places] == ["gn6-0", "gn7-0"]
    first, second = control.start("g", "ann"), control.start("g", "ann")
    assert (first.changed, second.changed) == (True, False)
    assert first.group.generation == second.group.generation == 1
    assert cluster.say("gn6").action is OrderAction.PREPARE
    cluster.say("gn6", WorkerState.READY, 1)
    control.tick()
    assert control.queries.group("g").waiting_for == ["gn7-0"]
    assert cluster.say("gn7", WorkerState.READY, 1).action is OrderAction.PREPARE
    control.tick()
    assert control.queries.group("g").phase is GroupPhase.RUNNING
    order = cluster.say("gn7", WorkerState.READY, 1)
    assert (order.action, order.environment["RANK"], order.command) == (OrderAction.RUN, "1", ("train",))
    for node in ("gn6", "gn7"):
        cluster.say(node, WorkerState.EXITED, 1, exit_code=0, ended_s_ago=0.0)
    control.tick()
    assert control.queries.group("g").phase is GroupPhase.FINISHED
    assert cluster.say("gn7", WorkerState.EXITED, 1, exit_code=0).action is OrderAction.STOP
    assert actions(cluster)[-3:] == ["start", "running", "finished"]
    assert {event.who for event in control.queries.events()} == {"ann", "server"}


def test_start_says_all_problems(cluster: Cluster) -> None:
    cluster.group_of("gn6", command="", world_size=2)
    with pytest.raises(RequestRefused) as refused:
        cluster.control.start("g", "ann")
    codes = [problem.code for problem in refused.value.refusal.problems]
    assert codes == ["world-size-above", "no-command"]
    assert [problem.code for problem in cluster.control.queries.preview("g").problems] == codes
    whole = cluster.control.queries.preview("g", GroupSettings(master_addr="gn6", command="x"))
    assert (len(whole.places), whole.problems) == (1, ())
    assert cluster.control.queries.group("g").phase is GroupPhase.IDLE


def test_a_restart_that_could_not_start_stops_nothing(cluster: Cluster) -> None:
    cluster.running("gn6")
    cluster.control.change_settings("g", GroupSettings(master_addr="elsewhere", command="train"), "ann")
    with pytest.raises(RequestRefused, match="not a node"):
        cluster.control.restart("g", "ann")
    assert cluster.control.queries.group("g").phase is GroupPhase.RUNNING


def test_settings_concern_the_next_generation(cluster: Cluster) -> None:
    cluster.running("gn6", "gn7")
    changed = GroupSettings(master_addr="gn7", command="other", master_port=1234)
    cluster.control.change_settings("g", changed, "ann")
    order = cluster.say("gn6", WorkerState.RUNNING, 1)
    assert (order.command, order.environment["MASTER_PORT"]) == (("train",), "29500")
    event = cluster.control.queries.events(limit=1)[0]
    assert 'command: "train" → "other"' in event.detail
    change = sentence("change", setting="command", before='"train"', after='"other"')
    assert (event.code, change in cast("list[Sentence]", event.values["changes"])) == ("changes", True)
    assert cluster.control.restart("g", "ann").changed
    assert cluster.say("gn6", WorkerState.RUNNING, 1).action is OrderAction.STOP
    for node in ("gn6", "gn7"):
        cluster.say(node, WorkerState.EXITED, 1, exit_code=-15, stop_requested=True)
    cluster.control.tick()
    order = cluster.say("gn7", WorkerState.EXITED, 1, exit_code=-15, stop_requested=True)
    assert (order.action, order.generation, order.environment["RANK"]) == (OrderAction.PREPARE, 2, "0")


def test_workers_move_only_between_groups_at_rest(cluster: Cluster) -> None:
    generation = cluster.running("gn6")
    control = cluster.control
    control.create_group(NewGroup(name="h"), "ann")
    for target in ("h", None):
        with pytest.raises(RequestRefused, match="g is queued or running"):
            control.move(["gn6-0"], target, "ann")
    with pytest.raises(RequestRefused, match="g is queued or running"):
        control.delete_group("g", "ann")
    for workers, group in ((["gn9-0"], "h"), (["x"], None), (["gn6-0"], "nowhere")):
        with pytest.raises(NotFound):
            control.move(workers, group, "ann")
    control.stop("g", "ann")
    cluster.say("gn6", WorkerState.EXITED, generation, exit_code=-15, stop_requested=True)
    control.tick()
    control.move(["gn6-0"], "h", "ann")
    assert (control.queries.group("g").workers, control.queries.group("h").workers) == ([], ["gn6-0"])
    assert control.queries.worker("gn6-0").group == "h"
    control.delete_group("h", "ann")
    assert control.queries.worker("gn6-0").group is None
    with pytest.raises(NotFound):
        control.queries.group("h")


def test_a_worker_from_another_group_never_takes_a_new_order_for_an_old_one(cluster: Cluster) -> None:
    cluster.running("gn6")
    control = cluster.control
    for _ in range(3):
        control.restart("g", "ann")
        generation = control.queries.group("g").generation
        cluster.say("gn6", WorkerState.EXITED, generation, exit_code=-15, stop_requested=True)
        control.tick()
        cluster.say("gn6", WorkerState.READY, generation + 1)
        control.tick()
    control.stop("g", "ann")
    cluster.say("gn6", WorkerState.EXITED, 4, exit_code=-15, stop_requested=True)
    control.tick()
    control.create_group(NewGroup(name="h", settings=GroupSettings(master_addr="gn6", command="x")), "ann")
    control.move(["gn6-0"], "h", "ann")
    cluster.kill_and_start()  # and its report is not even known
    assert cluster.control.start("h", "ann").group.generation == 5


def test_two_agents_of_one_name(cluster: Cluster) -> None:
    credential = cluster.join("gn6")
    cluster.say("gn6")
    for instance in 3 * ("another-one", "and-a-third"):
        with pytest.raises(
            RequestRefused, match="a running agent on gn6 already has the node name gn6"
        ) as refused:
            cluster.join("gn6", instance=instance)
    assert "--node" in refused.value.refusal.hint
    assert actions(cluster).count("join-refused") == 2, "each is told of once, however often it tries"
    assert cluster.control.who(credential) == "gn6"
    cluster.clock_s += 16
    taken = cluster.join("gn6", instance="another-one")
    assert actions(cluster)[-1] == "taken-over"
    assert (cluster.control.who(credential), cluster.control.who(taken)) == (None, "gn6")
    with pytest.raises(RequestRefused, match="does not belong"):
        cluster.say("gn6")
    cluster.beat("gn6", instance="another-one")


def test_the_same_agent_may_join_again_while_its_training_runs(cluster: Cluster) -> None:
    cluster.running("gn6")
    before = cluster.join("gn6")
    assert cluster.control.who(cluster.join("gn6")) == "gn6"
    assert cluster.control.who(before) is None
    cluster.control.tick()
    assert cluster.control.queries.group("g").phase is GroupPhase.RUNNING
    assert cluster.say("gn6", WorkerState.RUNNING, 1).action is OrderAction.RUN


def test_a_node_that_comes_with_fewer_workers(cluster: Cluster) -> None:
    cluster.join("gn6", workers=3)
    cluster.control.create_group(NewGroup(name="g"), "ann")
    cluster.control.move(["gn6-0", "gn6-2"], "g", "ann")
    cluster.join("gn6", workers=1)
    assert cluster.control.queries.worker_names() == ["gn6-0"]
    assert cluster.control.queries.group("g").workers == ["gn6-0"]


def test_a_node_is_forgotten_when_it_is_gone(cluster: Cluster) -> None:
    generation = cluster.running("gn6", "gn7")
    with pytest.raises(RequestRefused, match="the agent of gn7 is running"):
        cluster.control.forget("gn7", "ann")
    cluster.wait(20, "gn6")
    assert cluster.control.queries.group("g").phase is GroupPhase.DEGRADED
    with pytest.raises(RequestRefused, match="which is running"):
        cluster.control.forget("gn7", "ann")
    cluster.wait(45, "gn6")
    cluster.say("gn6", WorkerState.EXITED, generation, exit_code=-15, stop_requested=True)
    cluster.control.tick()
    group = cluster.control.queries.group("g")
    assert (group.phase, group.silent) == (GroupPhase.FAILED, ["gn7-0"])
    assert group.failure is not None
    assert group.failure.worker == "gn7-0"
    cluster.control.forget("gn7", "ann")
    assert cluster.control.queries.group("g").workers == ["gn6-0"]
    with pytest.raises(NotFound):
        cluster.control.forget("gn7", "ann")
    cluster.kill_and_start()
    assert cluster.control.queries.worker_names() == ["gn6-0"]


def test_idle_workers_are_told_to_stop_and_logs_go_on(cluster: Cluster) -> None:
    cluster.running("gn6", "gn7", world_size=1)
    assert cluster.say("gn7", WorkerState.EXITED, 3).action is OrderAction.STOP
    assert cluster.say("gn7", WorkerState.EXITED, 3).generation == 3, "whatever it is that still runs there"
    cluster.logs["gn6-0", 1] = 77
    assert cluster.say("gn6", WorkerState.RUNNING, 1).log_offset == 77


def test_version_counts_what_people_see(cluster: Cluster) -> None:
    cluster.join("gn6")
    control, seen = cluster.control, cluster.control.queries.version
    cluster.say("gn6")
    assert control.queries.version > seen, "a new state is seen at once"
    seen = control.queries.version
    for _ in range(10):  # one second and a half, a heartbeat more often than anybody looks
        cluster.clock_s += 0.15
        cluster.say("gn6")
        control.tick()
    assert control.queries.version == seen + 1
    cluster.clock_s += 10
    control.tick()
    seen = control.queries.version
    for _ in range(8):
        cluster.clock_s += 2
        control.tick()
    assert control.queries.version == seen + 2, "that it fell silent is seen once, and once in the events"


@pytest.mark.parametrize(
    "phase", [GroupPhase.PREPARING, GroupPhase.RUNNING, GroupPhase.STOPPING, GroupPhase.FAILED]
)
def test_kill_9_in_the_middle(database_url: str, phase: GroupPhase) -> None:
    with serving(database_url) as database:
        cluster = Cluster(database.store)
        if phase is GroupPhase.PREPARING:
            cluster.group_of("gn6", "gn7")
            cluster.control.start("g", "ann")
        else:
            cluster.running("gn6", "gn7", master_port=1234)
        if phase is GroupPhase.STOPPING:
            cluster.control.stop("g", "ann")
        elif phase is GroupPhase.FAILED:
            for _ in range(2):
                for node in ("gn6", "gn7"):
                    cluster.say(
                        node, WorkerState.EXITED, 1, exit_code=3, ended_s_ago=1.0, verdict="out of memory"
                    )
                cluster.control.tick()
        before = cluster.control.queries.group("g")
        assert before.phase is phase
        credential = cluster.join("gn8")
        orders = [cluster.say(node, WorkerState.READY, 1) for node in ("gn6", "gn7")]
    with serving(database_url) as database:
        cluster.store = database.store
        cluster.clock_s += 500  # however long it was away
        cluster.kill_and_start()
        control = cluster.control
        assert _lasting(control.queries.group("g")) == _lasting(before)
        assert control.who(credential) == "gn8"
        for _ in range(14):
            cluster.clock_s += 1
            control.tick()
        after = control.queries.group("g")
        assert (after.phase, after.silent) == (phase, []), "nobody was silent while nobody listened"
        assert [cluster.say(node, WorkerState.READY, 1) for node in ("gn6", "gn7")] == orders
        if phase is not GroupPhase.FAILED:
            cluster.wait(5)
            assert control.queries.group("g").silent == []
            cluster.wait(12)
            assert control.queries.group("g").silent == ["gn6-0", "gn7-0"]


def _lasting(group: Any) -> dict[str, Any]:
    kept: dict[str, Any] = group.model_dump(exclude={"waiting_for", "silent"})
    return kept


def test_a_server_that_was_stopped_calls_nobody_silent(cluster: Cluster) -> None:
    cluster.running("gn6")
    cluster.clock_s += 3600  # SIGSTOP, a debugger, a machine that was suspended
    cluster.control.tick()
    assert cluster.control.queries.group("g").phase is GroupPhase.RUNNING
    cluster.wait(61)
    assert cluster.control.queries.group("g").phase is GroupPhase.STOPPING


def test_heartbeats_never_wait_for_a_writer(cluster: Cluster) -> None:
    cluster.running("gn6")
    beat = Heartbeat(
        node="gn6",
        instance="instance-gn6",
        workers=(WorkerReport(number=0, state=WorkerState.RUNNING, generation=1),),
    )
    answered = threading.Event()

    def send() -> None:
        cluster.control.heartbeat("gn6", beat)
        answered.set()

    with cluster.control._ledger.writing:
        thread = threading.Thread(target=send)
        thread.start()
        assert answered.wait(30)
    thread.join()


@pytest.mark.parametrize("again", ["fails", "cannot start"])
def test_a_failed_restart_leaves_the_first_cause_to_be_seen(cluster: Cluster, again: str) -> None:
    control = cluster.control
    cluster.running("gn6", max_restarts=1)
    cluster.say("gn6", WorkerState.EXITED, 1, exit_code=3, ended_s_ago=0.0, verdict="out of memory")
    control.tick()
    control.tick()
    if again == "fails":
        cluster.wait(6, "gn6")
        cluster.say("gn6", WorkerState.REFUSED, 2, error="no such command")
        control.tick()
    else:
        settings = control.queries.group("g").settings
        control.change_settings("g", settings.model_copy(update={"world_size": 2}), "ann")
        cluster.wait(6, "gn6")
    control.tick()
    group = control.queries.group("g")
    assert group.phase is GroupPhase.FAILED
    assert group.failure is not None
    assert "out of memory" not in group.failure.verdict
    assert group.previous_failure is not None
    assert (group.previous_failure.run_number, group.previous_failure.verdict) == (1, "out of memory")


def test_every_run_stands_in_the_history(cluster: Cluster) -> None:
    control = cluster.control
    cluster.running("gn6", "gn7", max_restarts=1)
    assert [(run.number, run.outcome, run.requested_by) for run in control.queries.runs("g")] == [
        (1, None, "ann")
    ]
    failed = {"exit_code": 3, "ended_s_ago": 0.0, "verdict": "out of memory"}
    cluster.say("gn6", WorkerState.EXITED, 1, **failed)
    cluster.say("gn7", WorkerState.EXITED, 1, exit_code=143, stop_requested=True, ended_s_ago=0.0)
    control.tick()
    control.tick()
    group = control.queries.group("g")
    assert (group.phase, group.deadline and group.deadline.what) == (GroupPhase.BACKING_OFF, "restarts")
    assert control.queries.runs("g")[0].outcome is GroupPhase.FAILED
    cluster.wait(6, "gn6", "gn7")
    group = control.queries.group("g")
    assert (group.phase, group.run_number, group.failure) == (GroupPhase.PREPARING, 2, None)
    assert group.previous_failure is not None, "why it restarts stays to be seen"
    assert (group.previous_failure.run_number, group.previous_failure.verdict) == (1, "out of memory")
    for state in (WorkerState.READY, WorkerState.RUNNING):
        for node in ("gn6", "gn7"):
            cluster.say(node, state, 2)
        control.tick()
    control.restart("g", "bob")
    for node in ("gn6", "gn7"):
        cluster.say(node, WorkerState.EXITED, 2, exit_code=143, stop_requested=True, ended_s_ago=0.0)
    control.tick()
    control.stop("g", "eve")
    control.tick()
    runs = [
        (run.number, run.outcome and run.outcome.value, run.requested_by, run.restart)
        for run in control.queries.runs("g")
    ]
    assert runs == [(3, "stopped", "bob", 0), (2, "stopped", "ann", 1), (1, "failed", "ann", 0)]
    assert [run.number for run in control.queries.runs("g", before=3, limit=1)] == [2]
    detail = control.queries.run("g", 1)
    assert detail.failure is not None
    assert (detail.failure.worker, detail.settings.max_restarts) == ("gn6-0", 1)
    assert [(str(place.worker), place.rank) for place in detail.places] == [("gn6-0", 0), ("gn7-0", 1)]
    before = control.queries.runs("g")
    cluster.kill_and_start()
    assert cluster.control.queries.runs("g") == before
    names = cluster.control.queries.run_names("gn7-0", [1, 2, 9])
    assert sorted((name.generation, name.group, name.number) for name in names) == [(1, "g", 1), (2, "g", 2)]
    cluster.control.delete_group("g", "ann")
    assert cluster.control.queries.run_names("gn7-0", [1, 2]) == []


def test_a_groups_runs_count_from_one_whatever_its_workers_did_before(cluster: Cluster) -> None:
    cluster.running("gn6", name="first")
    cluster.control.stop("first", "ann")
    cluster.say("gn6", WorkerState.EXITED, 1, exit_code=143, stop_requested=True, ended_s_ago=0.0)
    cluster.control.tick()
    settings = GroupSettings(master_addr="gn6", command="train")
    cluster.control.create_group(NewGroup(name="second", settings=settings), "ann")
    cluster.control.move(["gn6-0"], "second", "ann")
    group = cluster.control.start("second", "ann").group
    assert (group.run_number, group.generation) == (1, 2)
    assert cluster.control.queries.events(limit=1)[0].detail == "run 1"
    made = cluster.control.create_group(NewGroup(name="third", like="second"), "ann")
    assert made.settings == settings


def test_what_happens_by_itself_is_counted_down(cluster: Cluster) -> None:
    cluster.group_of("gn6", "gn7", ready_within_s=30)
    cluster.control.start("g", "ann")
    cluster.control.tick()
    cluster.wait(10, "gn6", "gn7")
    deadline = cluster.control.queries.group("g").deadline
    assert deadline is not None
    assert (deadline.what, deadline.in_s) == ("fails", 20.0)
    for state in (WorkerState.READY, WorkerState.RUNNING):
        for node in ("gn6", "gn7"):
            cluster.say(node, state, 1)
        cluster.control.tick()
    assert cluster.control.queries.group("g").deadline is None
    cluster.wait(20, "gn6")
    group = cluster.control.queries.group("g")
    assert (group.phase, group.deadline and group.deadline.in_s) == (GroupPhase.DEGRADED, 40.0)


def test_a_group_has_variables_but_none_that_name_a_rank(cluster: Cluster) -> None:
    cluster.group_of("gn6", environment={"NCCL_DEBUG": "INFO"})
    cluster.control.start("g", "ann")
    assert cluster.say("gn6").variables == {"NCCL_DEBUG": "INFO"}
    for name in ("RANK", "PROCGUARD_RUN", "A B", ""):
        with pytest.raises(ValidationError):
            GroupSettings(environment={name: "1"})


def test_nothing_new_starts_on_a_drained_node(cluster: Cluster) -> None:
    cluster.running("gn6", "gn7")
    assert cluster.control.drain("gn7", True, "ann").drained_by == "ann"
    assert cluster.control.queries.group("g").phase is GroupPhase.RUNNING, "what runs goes on"
    with pytest.raises(RequestRefused) as refused:
        cluster.control.restart("g", "ann")
    assert [problem.code for problem in refused.value.refusal.problems] == ["node-drained"]
    cluster.kill_and_start()
    assert cluster.control.queries.node("gn7").drained_by == "ann"
    cluster.join("gn7", workers=1, version="2")
    assert cluster.control.queries.node("gn7").drained_by == "ann", "an agent that joins again stays drained"
    assert cluster.control.drain("gn7", False, "bob").drained_by == ""
    actions = [event.action for event in cluster.control.queries.events(chosen=EventFilter(on="gn7"))]
    assert actions[:1] + actions[-1:] == ["undrain", "joined"]
    with pytest.raises(NotFound):
        cluster.control.drain("gn99", True, "ann")


def test_nothing_new_starts_on_a_node_in_quarantine_until_it_is_released(cluster: Cluster) -> None:
    cluster.group_of("gn6", "gn7", "gn8", world_size=2)
    held = QuarantineReport(name="gn7", since=5.0, until=86_405.0, reason="GPU 3: XID 79 [gpu-xid]")
    cluster.answer("gn7", quarantine=held)
    assert cluster.control.queries.node("gn7").quarantine == held
    assert [str(place.worker) for place in cluster.control.queries.preview("g").places] == ["gn6-0", "gn8-0"]
    cluster.control.move(["gn8-0"], None, "ann")
    without_spare = cluster.control.queries.preview("g")
    assert [problem.code for problem in without_spare.problems] == ["node-quarantined"]
    assert cluster.answer("gn7", quarantine=held).release is None
    assert cluster.control.release("gn7", "ann").release_requested
    assert cluster.answer("gn7", quarantine=held).release == 5.0, "until its agent has written so"
    newer = held.model_copy(update={"since": 9.0})
    assert cluster.answer("gn7", quarantine=newer).release is None, "found bad again since"
    assert cluster.answer("gn7").release is None
    assert [str(place.worker) for place in cluster.control.queries.preview("g").places] == ["gn6-0", "gn7-0"]
    with pytest.raises(RequestRefused):
        cluster.control.release("gn7", "ann")


def test_who_came_into_quarantine_and_who_released_it_is_an_event(cluster: Cluster) -> None:
    cluster.join("gn7")
    held = QuarantineReport(name="gn7", since=5.0, reason="fan")
    cluster.clock_s += 2
    cluster.answer("gn7", quarantine=held)
    cluster.control.tick()
    cluster.control.release("gn7", "ann")
    cluster.clock_s += 2
    cluster.answer("gn7")
    cluster.control.tick()
    events = cluster.control.queries.events(chosen=EventFilter(on="gn7"))[:3]
    assert [(event.who, event.action, event.detail) for event in events] == [
        ("server", "released", "gn7"),
        ("ann", "release", "fan"),
        ("server", "quarantined", "fan"),
    ]


@pytest.mark.parametrize(
    ("code", "values", "detail"),
    [
        (
            "device-finding",
            {"where": "GPU 3", "what": "slow", "finding": "gpu-slow"},
            "GPU 3: slow [gpu-slow]",
        ),
        ("of-a-newer-version", {}, "in English"),
        ("device-finding", {"where": "GPU 3"}, "in English"),
    ],
)
def test_why_a_node_is_in_quarantine_is_told_in_english_where_it_is_of_another_version(
    cluster: Cluster, code: str, values: dict[str, Value], detail: str
) -> None:
    cluster.join("gn7")
    told = Sentence(code, values)
    cluster.clock_s += 2
    held = QuarantineReport(name="gn7", since=5.0, reason="in English", reason_sentence=told)
    cluster.answer("gn7", quarantine=held)
    cluster.control.tick()
    assert cluster.control.queries.events(chosen=EventFilter(on="gn7"))[0].detail == detail


def test_a_node_whose_device_failed_is_the_first_to_be_a_spare(cluster: Cluster) -> None:
    cluster.running("gn6", "gn7", "gn8", world_size=2)
    cluster.say("gn7", WorkerState.EXITED, 1, exit_code=UnfitNodeError.exit_code, ended_s_ago=0.0)
    assert [str(place.worker) for place in cluster.control.queries.preview("g").places] == ["gn6-0", "gn8-0"]
    for node in ("gn6", "gn8"):
        cluster.say(node, WorkerState.EXITED, 1, exit_code=0, ended_s_ago=0.0)
    for _ in ("stopping", "failed"):
        cluster.control.tick()
    cluster.control.move(["gn8-0"], None, "ann")
    assert not cluster.control.queries.preview("g").problems, "without another it is used"


def test_nodes_are_listed_as_people_order_names(cluster: Cluster) -> None:
    for node in ("gn39", "gn7", "gn6"):
        cluster.join(node)
    machine = MachineReport(cpu_percent=50, memory_used_gib=1, memory_total_gib=2, disk_free_gib=9)
    beat = Heartbeat(node="gn6", instance="instance-gn6", machine=machine, workers=())
    cluster.control.heartbeat("gn6", beat)
    assert cluster.control.queries.node_names() == ["gn6", "gn7", "gn39"]
    assert cluster.control.queries.node("gn6").machine == machine
    assert cluster.control.queries.node("gn6").counts == {WorkerStatus.UNKNOWN: 1}
    cluster.clock_s += 20
    assert cluster.control.queries.node("gn6").silent


def glances_say_what_documents_say(cluster: Cluster) -> list[object]:
    """Return the glances at all workers, each compared with what is made anew of the same worker."""
    queries = cluster.control.queries
    glances = [worker for node in queries.glances() for worker in node.workers]
    assert [one.worker for one in glances] == queries.worker_names()
    for glance in glances:
        worker = queries.worker(glance.worker)
        assert (glance.worker, glance.node) == (worker.worker, worker.node)
        assert (glance.status, glance.silent) == (worker.status, worker.silent)
        assert (glance.group, glance.rank) == (worker.group, worker.rank)
        assert glance.gpu_indexes == {gpu.index for gpu in worker.gpus}
    for node in queries.glances():
        shape = queries.node(node.node)
        assert (node.node, node.silent, bool(node.entry.node.drained_by)) == (
            shape.node,
            shape.silent,
            bool(shape.drained_by),
        )
        assert (node.groups, node.gpus) == (shape.groups, shape.gpus)
    return list(glances)


def test_glances_say_what_documents_say(cluster: Cluster) -> None:
    generation = cluster.running("gn6", "gn7")
    glances_say_what_documents_say(cluster)
    gpus = tuple(GpuReport(index=index, utilization_percent=5) for index in (0, 1))
    cluster.say("gn6", WorkerState.RUNNING, generation, gpus=gpus)
    glances_say_what_documents_say(cluster)
    others = tuple(GpuReport(index=index, utilization_percent=5) for index in (2, 3))
    cluster.say("gn6", WorkerState.RUNNING, generation, gpus=others)
    glances_say_what_documents_say(cluster)
    cluster.say("gn7", WorkerState.EXITED, generation, exit_code=1, ended_s_ago=0.0)
    glances_say_what_documents_say(cluster)
    cluster.say("gn7", WorkerState.EXITED, generation, exit_code=1, ended_s_ago=0.0, stop_requested=True)
    cluster.control.tick()
    glances_say_what_documents_say(cluster)
    cluster.say("gn6", WorkerState.IDLE, generation)
    cluster.control.tick()
    cluster.control.move(["gn7-0"], None, "ann")
    glances_say_what_documents_say(cluster)
    cluster.control.drain("gn6", True, "ann")
    cluster.wait(30, "gn6")
    silent = [one.worker for node in cluster.control.queries.glances() for one in node.workers if one.silent]
    assert silent == ["gn7-0"]
    glances_say_what_documents_say(cluster)
    cluster.join("gn7", workers=2)
    cluster.join("gn10")
    assert len(glances_say_what_documents_say(cluster)) == 4


def test_many_lost_nodes_are_one_entry(cluster: Cluster) -> None:
    for number in range(40):
        cluster.join(f"gn{number}")
    cluster.wait(20, "gn0")
    found = cluster.control.queries.events(chosen=EventFilter(action="agents-lost"))
    assert [event.object for event in found] == ["39 nodes"]
    assert found[0].detail.startswith("gn1, gn2")
    cluster.beat("gn7")
    cluster.wait(2, "gn0", "gn7")
    assert cluster.control.queries.events(chosen=EventFilter(action="agents-back"))[0].object == "gn7"


def test_what_happens_to_nodes_while_the_database_is_away_is_written_down_once_it_is_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise Unavailable("database-not-written", reason="it is away")

    for node in ("gn6", "gn7", "gn8"):
        cluster.join(node)
    cluster.wait(20, "gn6", "gn7")
    with monkeypatch.context() as away:
        away.setattr(cluster.store, "change", refuse)
        cluster.beat("gn8")
        cluster.wait(20, "gn7", "gn8")
    cluster.wait(2, "gn7", "gn8")
    events = cluster.control.queries.events(chosen=EventFilter(who="server"))
    assert [(event.action, event.object) for event in events if event.action.startswith("agents-")] == [
        ("agents-back", "gn8"),
        ("agents-lost", "gn6"),
        ("agents-lost", "gn8"),
    ]


def test_events_as_a_table_hold_no_formula(cluster: Cluster) -> None:
    cluster.control.record("ann", "settings", "g", quoted('=HYPERLINK("http://evil"), "quoted"'))
    lines = "".join(csv_lines(cluster.control.queries, EventFilter(who="ann"))).splitlines()
    assert lines[0] == "id,at,who,action,on,detail,code,values"
    assert ',ann,settings,g,"\'=HYPERLINK(""http://evil""), ""quoted""",quoted,' in lines[1]
    values = json.loads(next(csv.DictReader(lines))["values"])
    assert values == {"text": '=HYPERLINK("http://evil"), "quoted"'}


def test_an_order_is_repeated_until_it_is_replaced(cluster: Cluster) -> None:
    cluster.group_of("gn6")

    def order() -> WorkerOrder:
        return cluster.answer("gn6", WorkerReport(number=0, state=WorkerState.IDLE)).orders[0]

    assert [order().action, order().action] == [OrderAction.STOP] * 2
    cluster.control.start("g", "ann")
    assert [order().action, order().action] == [OrderAction.PREPARE] * 2
    cluster.logs["gn6-0", 1] = 7
    assert order().log_offset == 7
