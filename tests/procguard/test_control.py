"""Control on a real database: what people ask, what agents say, and what comes back after kill -9."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platform_launch.procguard.database import serving
from platform_launch.procguard.refused import NotFound, Refused
from platform_launch.procguard.shapes import GroupSettings, NewGroup, Phase
from platform_launch.procguard.wire import Action, Beat, Report, State
from tests.procguard.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with serving(f"sqlite:///{tmp_path}/procguard.db") as database:
        yield Cluster(database.store)


def actions(cluster: Cluster) -> list[str]:
    return [event.action for event in reversed(cluster.control.events())]


def test_a_group_from_its_making_to_its_end(cluster: Cluster) -> None:
    cluster.group_of("gn6", "gn7")
    control = cluster.control
    assert [place.worker for place in control.preview("g").places] == ["gn6-0", "gn7-0"]
    first, second = control.start("g", "ann"), control.start("g", "ann")
    assert (first.changed, second.changed) == (True, False)
    assert first.group.generation == second.group.generation == 1
    assert cluster.say("gn6").action is Action.PREPARE
    cluster.say("gn6", State.READY, 1)
    control.tick()
    assert control.group("g").waiting_for == ["gn7-0"]
    assert cluster.say("gn7", State.READY, 1).action is Action.PREPARE
    control.tick()
    assert control.group("g").phase is Phase.RUNNING
    order = cluster.say("gn7", State.READY, 1)
    assert (order.action, order.environment["RANK"], order.command) == (Action.RUN, "1", ("train",))
    for node in ("gn6", "gn7"):
        cluster.say(node, State.EXITED, 1, exit_code=0, ended_s_ago=0.0)
    control.tick()
    assert control.group("g").phase is Phase.FINISHED
    assert cluster.say("gn7", State.EXITED, 1, exit_code=0).action is Action.STOP
    assert actions(cluster)[-3:] == ["start", "running", "finished"]
    assert {event.who for event in control.events()} == {"ann", "server"}


def test_start_says_all_problems(cluster: Cluster) -> None:
    cluster.group_of("gn6", command="", world_size=2)
    with pytest.raises(Refused) as refused:
        cluster.control.start("g", "ann")
    codes = [problem.code for problem in refused.value.refusal.problems]
    assert codes == ["world-size-above", "no-command"]
    assert [problem.code for problem in cluster.control.preview("g").problems] == codes
    whole = cluster.control.preview("g", GroupSettings(master_addr="gn6", command="x"))
    assert (len(whole.places), whole.problems) == (1, [])
    assert cluster.control.group("g").phase is Phase.IDLE


def test_a_restart_that_could_not_start_stops_nothing(cluster: Cluster) -> None:
    cluster.running("gn6")
    cluster.control.change_settings("g", GroupSettings(master_addr="elsewhere", command="train"), "ann")
    with pytest.raises(Refused, match="elsewhere"):
        cluster.control.restart("g", "ann")
    assert cluster.control.group("g").phase is Phase.RUNNING


def test_settings_concern_the_next_generation(cluster: Cluster) -> None:
    cluster.running("gn6", "gn7")
    changed = GroupSettings(master_addr="gn7", command="other", master_port=1234)
    cluster.control.change_settings("g", changed, "ann")
    order = cluster.say("gn6", State.RUNNING, 1)
    assert (order.command, order.environment["MASTER_PORT"]) == (("train",), "29500")
    event = cluster.control.events(limit=1)[0]
    assert "command: 'train' → 'other'" in event.detail
    assert cluster.control.restart("g", "ann").changed
    assert cluster.say("gn6", State.RUNNING, 1).action is Action.STOP
    for node in ("gn6", "gn7"):
        cluster.say(node, State.EXITED, 1, exit_code=-15, asked=True)
    cluster.control.tick()
    order = cluster.say("gn7", State.EXITED, 1, exit_code=-15, asked=True)
    assert (order.action, order.generation, order.environment["RANK"]) == (Action.PREPARE, 2, "0")


def test_workers_move_only_between_groups_at_rest(cluster: Cluster) -> None:
    generation = cluster.running("gn6")
    control = cluster.control
    control.create_group(NewGroup(name="h"), "ann")
    for target in ("h", None):
        with pytest.raises(Refused, match="g is running"):
            control.move(["gn6-0"], target, "ann")
    with pytest.raises(Refused, match="g is running"):
        control.delete_group("g", "ann")
    for workers, group in ((["gn9-0"], "h"), (["x"], None), (["gn6-0"], "nowhere")):
        with pytest.raises(NotFound):
            control.move(workers, group, "ann")
    control.stop("g", "ann")
    cluster.say("gn6", State.EXITED, generation, exit_code=-15, asked=True)
    control.tick()
    control.move(["gn6-0"], "h", "ann")
    assert (control.group("g").workers, control.group("h").workers) == ([], ["gn6-0"])
    assert control.worker("gn6-0").group == "h"
    control.delete_group("h", "ann")
    assert control.worker("gn6-0").group is None
    with pytest.raises(NotFound):
        control.group("h")


def test_a_worker_from_another_group_never_takes_a_new_order_for_an_old_one(cluster: Cluster) -> None:
    cluster.running("gn6")
    control = cluster.control
    for _ in range(3):
        control.restart("g", "ann")
        generation = control.group("g").generation
        cluster.say("gn6", State.EXITED, generation, exit_code=-15, asked=True)
        control.tick()
        cluster.say("gn6", State.READY, generation + 1)
        control.tick()
    control.stop("g", "ann")
    cluster.say("gn6", State.EXITED, 4, exit_code=-15, asked=True)
    control.tick()
    control.create_group(NewGroup(name="h", settings=GroupSettings(master_addr="gn6", command="x")), "ann")
    control.move(["gn6-0"], "h", "ann")
    cluster.kill_and_start()  # and its report is not even known
    assert cluster.control.start("h", "ann").group.generation == 5


def test_two_agents_of_one_name(cluster: Cluster) -> None:
    credential = cluster.join("gn6")
    cluster.say("gn6")
    for instance in 3 * ("another-one", "and-a-third"):
        with pytest.raises(Refused, match="'gn6' is the name of an agent that is alive, on gn6") as refused:
            cluster.join("gn6", instance=instance)
    assert "--node" in refused.value.refusal.hint
    assert actions(cluster).count("join-refused") == 2, "each is told of once, however often it tries"
    assert cluster.control.who(credential) == "gn6"
    cluster.clock_s += 16
    taken = cluster.join("gn6", instance="another-one")
    assert actions(cluster)[-1] == "taken-over"
    assert (cluster.control.who(credential), cluster.control.who(taken)) == (None, "gn6")
    with pytest.raises(Refused, match="no longer known"):
        cluster.say("gn6")
    cluster.beat("gn6", instance="another-one")


def test_the_same_agent_may_join_again_while_its_training_runs(cluster: Cluster) -> None:
    cluster.running("gn6")
    before = cluster.join("gn6")
    assert cluster.control.who(cluster.join("gn6")) == "gn6"
    assert cluster.control.who(before) is None
    cluster.control.tick()
    assert cluster.control.group("g").phase is Phase.RUNNING
    assert cluster.say("gn6", State.RUNNING, 1).action is Action.RUN


def test_a_node_that_comes_with_fewer_workers(cluster: Cluster) -> None:
    cluster.join("gn6", workers=3)
    cluster.control.create_group(NewGroup(name="g"), "ann")
    cluster.control.move(["gn6-0", "gn6-2"], "g", "ann")
    cluster.join("gn6", workers=1)
    assert [worker.worker for worker in cluster.control.workers()] == ["gn6-0"]
    assert cluster.control.group("g").workers == ["gn6-0"]


def test_a_node_is_forgotten_when_it_is_gone(cluster: Cluster) -> None:
    generation = cluster.running("gn6", "gn7")
    with pytest.raises(Refused, match="the agent of gn7 is alive"):
        cluster.control.forget("gn7", "ann")
    cluster.wait(20, "gn6")
    assert cluster.control.group("g").phase is Phase.DEGRADED
    with pytest.raises(Refused, match="which is running"):
        cluster.control.forget("gn7", "ann")
    cluster.wait(45, "gn6")
    cluster.say("gn6", State.EXITED, generation, exit_code=-15, asked=True)
    cluster.control.tick()
    group = cluster.control.group("g")
    assert (group.phase, group.silent) == (Phase.FAILED, ["gn7-0"])
    assert group.failure is not None
    assert group.failure.worker == "gn7-0"
    cluster.control.forget("gn7", "ann")
    assert cluster.control.group("g").workers == ["gn6-0"]
    with pytest.raises(NotFound):
        cluster.control.forget("gn7", "ann")
    cluster.kill_and_start()
    assert [worker.worker for worker in cluster.control.workers()] == ["gn6-0"]


def test_idle_workers_are_told_to_stop_and_logs_go_on(cluster: Cluster) -> None:
    cluster.running("gn6", "gn7", world_size=1)
    assert cluster.say("gn7", State.EXITED, 3).action is Action.STOP
    assert cluster.say("gn7", State.EXITED, 3).generation == 3, "whatever it is that still runs there"
    cluster.logs["gn6-0", 1] = 77
    assert cluster.say("gn6", State.RUNNING, 1).log_offset == 77


def test_what_is_asked_of_a_worker_is_one_object_while_it_stays_the_same(cluster: Cluster) -> None:
    cluster.running("gn6")
    assert cluster.say("gn6", State.RUNNING, 1) is cluster.say("gn6", State.RUNNING, 1)


def test_version_counts_what_people_see(cluster: Cluster) -> None:
    cluster.join("gn6")
    control, seen = cluster.control, cluster.control.version
    cluster.say("gn6")
    assert control.version > seen, "a new state is seen at once"
    seen = control.version
    for _ in range(10):  # one second and a half, a heartbeat more often than anybody looks
        cluster.clock_s += 0.15
        cluster.say("gn6")
        control.tick()
    assert control.version == seen + 1
    cluster.clock_s += 10
    control.tick()
    seen = control.version
    for _ in range(8):
        cluster.clock_s += 2
        control.tick()
    assert control.version == seen + 1, "that it fell silent is seen once"


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.RUNNING, Phase.STOPPING, Phase.FAILED])
def test_kill_9_in_the_middle(database_url: str, phase: Phase) -> None:
    with serving(database_url) as database:
        cluster = Cluster(database.store)
        if phase is Phase.PREPARING:
            cluster.group_of("gn6", "gn7")
            cluster.control.start("g", "ann")
        else:
            cluster.running("gn6", "gn7", master_port=1234)
        if phase is Phase.STOPPING:
            cluster.control.stop("g", "ann")
        elif phase is Phase.FAILED:
            for _ in range(2):
                for node in ("gn6", "gn7"):
                    cluster.say(node, State.EXITED, 1, exit_code=3, ended_s_ago=1.0, verdict="out of memory")
                cluster.control.tick()
        before = cluster.control.group("g")
        assert before.phase is phase
        credential = cluster.join("gn8")
        orders = [cluster.say(node, State.READY, 1) for node in ("gn6", "gn7")]
    with serving(database_url) as database:
        cluster.store = database.store
        cluster.clock_s += 500  # however long it was away
        cluster.kill_and_start()
        control = cluster.control
        assert _lasting(control.group("g")) == _lasting(before)
        assert control.who(credential) == "gn8"
        for _ in range(14):
            cluster.clock_s += 1
            control.tick()
        after = control.group("g")
        assert (after.phase, after.silent) == (phase, []), "nobody was silent while nobody listened"
        assert [cluster.say(node, State.READY, 1) for node in ("gn6", "gn7")] == orders
        if phase is not Phase.FAILED:
            cluster.wait(5)
            assert control.group("g").silent == []
            cluster.wait(12)
            assert control.group("g").silent == ["gn6-0", "gn7-0"]


def _lasting(group: Any) -> dict[str, Any]:
    kept: dict[str, Any] = group.model_dump(exclude={"waiting_for", "silent"})
    return kept


def test_a_server_that_was_stopped_calls_nobody_silent(cluster: Cluster) -> None:
    cluster.running("gn6")
    cluster.clock_s += 3600  # SIGSTOP, a debugger, a machine that was suspended
    cluster.control.tick()
    assert cluster.control.group("g").phase is Phase.RUNNING
    cluster.wait(61)
    assert cluster.control.group("g").phase is Phase.STOPPING


def test_heartbeats_never_wait_for_a_writer(cluster: Cluster) -> None:
    cluster.running("gn6")
    beat = Beat(
        node="gn6", instance="instance-gn6", workers=(Report(number=0, state=State.RUNNING, generation=1),)
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
