"""A rendezvous that is lost for a while does not stop a job that makes progress."""

from __future__ import annotations

import signal
from pathlib import Path

from platform_launch.rendezvous.listening import candidates
from tests.lab.netns import hosts, requires_netns
from tests.lab.waiting import until
from tests.rendezvous.cluster import ROOT, Node, start

pytestmark = requires_netns

STEPS = ROOT / "tests" / "lab" / "summing.py"
RENDEZVOUS_PORT = candidates(29500)[0]


def hears_all(node: Node) -> bool:
    """Return whether the last report of a node about a silence is that it has ended."""
    news = [line for _, line in list(node.lines) if "[node-silent]" in line or "[node-heard-again]" in line]
    return not news or "[node-heard-again]" in news[-1]


def test_job_is_not_affected_by_rendezvous_failures(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with hosts(2) as machines:
        nodes = [
            start(machine, rank, 2, str(end), logs=tmp_path, options=("--node-timeout", "4"), script=STEPS)
            for rank, machine in enumerate(machines)
        ]
        first, second = nodes
        first.when("] Step 2 ")
        # Only the way to the rendezvous is lost, for many times the limit.
        machines[1].lose_port(RENDEZVOUS_PORT)
        first.when("node 1 (node1 (10.213.0.2)) has been silent for")
        second.when("node 0 has not answered for")
        until(lambda: second.count("node 0 has not answered for") >= 2, lambda: second.text)
        machines[1].find_port(RENDEZVOUS_PORT)
        first.when("node 1 (node1 (10.213.0.2)) responds again")
        second.when("node 0 answers again")
        # The launcher of node 1 stands still for longer than the limit.
        second.process.send_signal(signal.SIGSTOP)
        first.when("the launcher of node 1 (node1 (10.213.0.2)) is stopped or stuck")
        second.process.send_signal(signal.SIGCONT)
        # For longer than the limit (a step takes 0.1 s): who is not heard by then has been called silent.
        steps = first.count("] Step")
        until(lambda: first.count("] Step") > steps + 100)
        # A training that ends moves no more: before that, nobody may be silent any longer.
        until(lambda: hears_all(first) and hears_all(second), lambda: f"{first.text}\n\n{second.text}")
        end.touch()
        assert [node.code() for node in nodes] == [0, 0], f"{first.text}\n\n{second.text}"
