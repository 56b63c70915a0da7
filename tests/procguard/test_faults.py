"""Server and agents die at the worst moments: nothing is lost, nothing runs twice, nothing is left."""

from __future__ import annotations

import platform
import signal
import time
from pathlib import Path

import pytest

from tests.lab.needs import Need, takes_long
from tests.lab.postgres import Postgres, requires_postgres
from tests.lab.waiting import LIMIT_S, until
from tests.procguard.agent_lab import node_in
from tests.procguard.faults_lab import HEARTBEAT_S, SLOW, Site, end_training, no_trouble, site
from tests.procguard.server_process import server


def died_and_back(here: Site) -> None:
    here.kill()
    here.start()


@pytest.mark.nightly
def test_the_server_dies_while_a_group_starts(tmp_path: Path) -> None:
    with site(tmp_path, "localhost", "node7") as here:
        paused = here.nodes[1].process
        assert paused is not None
        paused.send_signal(signal.SIGSTOP)
        here.launch(silent_after_s=LIMIT_S, fail_after_s=LIMIT_S)  # nobody gives it up meanwhile
        until(lambda: here.group()["waiting_for"] == ["node7-0"], "one of two to be ready")
        died_and_back(here)
        assert here.group()["phase"] == "preparing"
        assert here.starts() == [0, 0], "all start or none"
        paused.send_signal(signal.SIGCONT)
        group = here.reach("running")
        died_and_back(here)  # at once: agents have not heard of it, or only one of them has
        here.pids()
        assert here.reach("running")["generation"] == group["generation"] == 1
        until(lambda: all(here.starts()), "both trainings")
        assert here.starts() == [1, 1]
        for node in here.nodes:
            end_training(node, 0)
        assert here.reach("finished")["failure"] is None
        # A machine that is busy may have heard nobody for a while: that is told as well.
        heard = ("degraded", "recovered", "agents-lost", "agents-back")
        told = [action for action in here.actions() if action not in heard]
        assert told[-3:] == ["start", "running", "finished"]


@pytest.mark.nightly
def test_the_server_dies_while_a_group_stops(tmp_path: Path) -> None:
    with site(tmp_path, "localhost", "node7") as here:
        here.launch(SLOW)
        here.pids()
        until(lambda: here.starts() == [1, 1], "both trainings")
        here.done("POST", "groups/train/stop")
        assert here.group()["phase"] == "stopping"
        died_and_back(here)
        group = here.reach("stopped")
        assert (group["generation"], group["failure"]) == (1, None)
        here.only_agents_are_left()
        assert here.starts() == [1, 1]


@takes_long
def test_an_agent_dies_and_its_training_goes_on_to_its_exit_code(tmp_path: Path) -> None:
    with site(tmp_path, "localhost", "node7") as here:
        here.launch(grace_s=10)
        pids = here.pids()
        first = here.nodes[0]
        first.kill()
        time.sleep(3 * HEARTBEAT_S)
        first.start(here.url)
        here.wait_heard("localhost")
        assert here.pids() == pids
        assert here.reach("running")["failure"] is None
        first.kill()
        end_training(first, 7)  # while nobody looks
        until(lambda: len(first.processes()) == 0, "the supervisor to be done")
        first.start(here.url)
        failure = here.reach("failed")["failure"]
        assert (failure["worker"], failure["exit_code"]) == ("localhost-0", 7)
        assert here.starts() == [1, 1]


@takes_long
def test_two_agents_of_one_name(tmp_path: Path) -> None:
    with site(tmp_path, "localhost") as here, node_in(tmp_path / "other", "localhost") as other:
        here.launch()
        pids = here.pids()
        other.start(here.url)
        until(lambda: "another agent has the name localhost" in other.said.read_text(), "the refusal")
        assert here.pids() == pids
        assert here.group()["phase"] == "running"
        assert "join-refused" in here.actions()
        here.done("POST", "groups/train/stop")
        here.reach("stopped")
        assert here.starts() == [1]
        assert not (other.work / "starts").exists()


@requires_postgres
def test_two_servers_of_one_postgresql(tmp_path: Path, postgres_server: Postgres) -> None:
    url = postgres_server.new_database()
    with server(tmp_path / "first", "--database", url) as first:
        assert first.process.poll() is None, first.said
        with server(tmp_path / "second", "--database", url) as second:
            assert second.process.wait(LIMIT_S) == 75
        no_trouble(first.lines)
    assert "error: another server uses" in second.said
    assert f"process {first.process.pid}" in second.said
    assert "Traceback" not in second.said


FAKETIME = Path(f"/usr/lib/{platform.machine()}-linux-gnu/faketime/libfaketimeMT.so.1")
requires_faketime = Need("libfaketime", lambda: "" if FAKETIME.exists() else f"needs {FAKETIME}").mark


@pytest.mark.nightly
@requires_faketime
def test_the_wall_clock_jumps(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0")
    env = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with site(tmp_path, "localhost", "node7", env=env) as here:
        here.launch(silent_after_s=20, fail_after_s=20)
        pids = here.pids()
        for jump in ("+86400", "-86400"):
            offset.write_text(jump)
            time.sleep(1.5)  # for the control loop to try again and again
            here.log_in()  # sessions are by the wall clock
            done = [action for action in here.actions() if action != "login"]
            assert done[-2:] == ["start", "running"]
        assert here.pids() == pids
        assert not any(here.worker(node)["silent"] for node in ("localhost", "node7"))
        here.done("POST", "groups/train/stop")
        here.reach("stopped")
        assert here.starts() == [1, 1]
