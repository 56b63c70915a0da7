"""Nodes stay connected while the job runs: one that fails stops all, one that is slow stops none."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from platform_launch.errors import NodesAbsentError
from tests.lab.cgroup import memory_limit, requires_memory_limit
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import at_once
from tests.rendezvous.cluster import Node, kill_everything, start

pytestmark = requires_netns

ABSENT = NodesAbsentError.exit_code
QUICK = ("--node-timeout", "3")


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Host, ...]]:
    with hosts(3) as made:
        yield made


@pytest.fixture
def machines(network: tuple[Host, ...]) -> Iterator[tuple[Host, ...]]:
    """The same hosts for every test, cleaned up in between."""
    yield network
    for host in network:
        kill_everything(host)


def everything(nodes: list[Node]) -> str:
    return "\n\n".join(node.text for node in nodes)


def training(
    machines: tuple[Host, ...], logs: Path, *script: str, options: tuple[str, ...] = ()
) -> list[Node]:
    """Start a node on each machine and wait until all train."""
    arguments = ("print:training", *script)
    nodes = [
        start(machine, rank, len(machines), *arguments, logs=logs, options=options)
        for rank, machine in enumerate(machines)
    ]
    for node in nodes:
        node.when("] training")
    return nodes


def test_script_that_raises_on_one_node_stops_all(machines: tuple[Host, ...], tmp_path: Path) -> None:
    nodes = training(machines[:2], tmp_path, "sleep:1", "fail:1")
    assert [node.code() for node in nodes] == [1, 1], everything(nodes)
    for node in nodes:
        assert node.said("[ERROR] node 1, node1 (10.213.0.2): the training ended with exit code 1")
        assert node.said("cause:      ValueError: the data is wrong"), node.text
        assert not node.said("restart")


def test_node_that_dies_is_reported_with_its_last_output_also_node_0(tmp_path: Path) -> None:
    at_once(partial(_dies_whole, tmp_path / "0", 0), partial(_dies_whole, tmp_path / "2", 2))


def _dies_whole(logs: Path, lost: int) -> None:
    with hosts(3) as machines:
        nodes = training(machines, logs, "print:step 41 done", "sleep:300", options=QUICK)
        time.sleep(6)  # words travel once a second, on a machine that has time for it
        kill_everything(machines[lost])
        nodes[lost].code()
        others = [node for node in nodes if node is not nodes[lost]]
        assert [node.code() for node in others] == [ABSENT, ABSENT], everything(nodes)
    missed = "[ERROR] node 2 (node2 (10.213.0.3)): the launcher was killed" if lost else "[coordinator-gone]"
    for node in others:
        assert node.said(missed), node.text
        assert node.said("  | step 41 done"), node.text


def test_cut_link_stops_both_sides(machines: tuple[Host, ...], tmp_path: Path) -> None:
    nodes = training(machines[:2], tmp_path, "sleep:300", options=QUICK)
    machines[1].cut()
    try:
        assert [node.code() for node in nodes] == [ABSENT, ABSENT], everything(nodes)
    finally:
        machines[1].heal()
    assert nodes[0].said("[ERROR] lost node 1 (node1 (10.213.0.2)): no heartbeat for")
    assert nodes[1].said("[coordinator-silent]")


def test_short_cut_link_or_pause_of_node_0_stops_nothing(tmp_path: Path) -> None:
    at_once(partial(_is_cut, tmp_path / "cut"), partial(_stands_still, tmp_path / "still"))


def _is_cut(logs: Path) -> None:
    """With the default time limit."""
    with hosts(2) as machines:
        nodes = training(machines, logs, "sleep:9")
        machines[1].cut()
        time.sleep(5)
        machines[1].heal()
        assert [node.code() for node in nodes] == [0, 0], everything(nodes)


def _stands_still(logs: Path) -> None:
    """Neither node 0 nor the others report each other as lost when node 0 continues."""
    with hosts(2) as machines:
        nodes = training(machines, logs, "sleep:7", options=("--node-timeout", "12"))
        nodes[0].process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        nodes[0].process.send_signal(signal.SIGCONT)
        assert [node.code() for node in nodes] == [0, 0], everything(nodes)


def test_long_silence_of_the_training_stops_nothing(machines: tuple[Host, ...], tmp_path: Path) -> None:
    """Hours of a job without output, by shortened timers."""
    nodes = training(machines[:2], tmp_path, "sleep:24", options=("--node-timeout", "6"))
    assert [node.code() for node in nodes] == [0, 0], everything(nodes)


def test_nodes_may_finish_seconds_apart(machines: tuple[Host, ...], tmp_path: Path) -> None:
    nodes = training(machines, tmp_path, "late:1:3", "late:2:1.5", options=("--node-timeout", "2"))
    assert [node.code() for node in nodes] == [0, 0, 0], everything(nodes)


def test_sigterm_to_one_node_lets_all_save_and_exit(machines: tuple[Host, ...], tmp_path: Path) -> None:
    nodes = training(machines[:2], tmp_path, f"obey:{tmp_path}/saved", "print:obeying", "sleep:300")
    for node in nodes:
        node.when("] obeying")
    nodes[1].process.terminate()
    assert [node.code() for node in nodes] == [0, 0], everything(nodes)
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]
    for node in nodes:
        assert node.said("[WARN] node 1 (node1 (10.213.0.2)) was asked to stop (SIGTERM)"), everything(nodes)
        assert not node.said("[ERROR]")


def test_failed_run_restarts_on_all_nodes(machines: tuple[Host, ...], tmp_path: Path) -> None:
    options = ("--max-restarts", "1")
    nodes = training(machines[:2], tmp_path, "once:1", "print:good", "sleep:2", options=options)
    assert [node.code() for node in nodes] == [0, 0], everything(nodes)
    for node in nodes:
        assert node.said("[WARN] restart 1 of 1: the nodes connect again")
        assert node.said("ValueError: the data is wrong")
        assert node.said("] good")


def test_run_without_progress_is_not_started_a_third_time(machines: tuple[Host, ...], tmp_path: Path) -> None:
    nodes = training(machines[:2], tmp_path, "step:7", "fail:1", options=("--max-restarts", "9"))
    assert [node.code() for node in nodes] == [1, 1], everything(nodes)
    for node in nodes:
        assert node.said("restart 2 of 9")
        assert not node.said("restart 3 of 9")
        assert node.said("not restarted: the last two restarts made no progress")


@requires_memory_limit
def test_out_of_memory_is_distinguished_from_kill(machines: tuple[Host, ...], tmp_path: Path) -> None:
    script = ("print:training", "sleep:1", "eat:1", "sleep:300")
    with memory_limit(2**30) as group:
        nodes = [
            start(machines[rank], rank, 2, *script, logs=tmp_path, within=within)
            for rank, within in enumerate((None, group))
        ]
        assert [node.code() for node in nodes] == [137, 137], everything(nodes)
    for node in nodes:
        assert node.said("[ERROR] node 1, node1 (10.213.0.2): the training ended with exit code 137")
        assert node.said("cause:      the kernel killed a process because memory ran out"), node.text
    assert nodes[1].said("[out_of_memory_kill]")


def test_node_replaced_by_the_platform_joins_the_next_attempt(
    machines: tuple[Host, ...], tmp_path: Path
) -> None:
    options = (*QUICK, "--max-restarts", "1")
    nodes = training(machines, tmp_path, "sleep:8", options=options)
    kill_everything(machines[1])
    nodes[1].code()
    nodes[1] = start(machines[1], 1, 3, "print:training", "sleep:8", logs=tmp_path / "again", options=options)
    assert [node.code() for node in nodes] == [0, 0, 0], everything(nodes)
    assert nodes[0].said("restart 1 of 1: the nodes connect again")


def test_no_roll_call_means_no_connection(machines: tuple[Host, ...], tmp_path: Path) -> None:
    node = start(machines[1], 1, 2, "print:alone", logs=tmp_path, options=("--no-roll-call",))
    assert node.code() == 0
    assert node.said("] alone")
    assert not node.said("roll call")
