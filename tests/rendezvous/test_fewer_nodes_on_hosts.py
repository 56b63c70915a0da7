"""Three nodes of which two may continue: node 0 is lost with its host, and returns at the next restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import until
from tests.rendezvous.cluster import Node, kill_everything, start

pytestmark = [requires_netns, pytest.mark.nightly]

NNODES = 3
# Each start brings it a step further; it fails on the rank that a file names, once.
TRAINING = """
import os, sys, time
from pathlib import Path
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
restarts = os.environ["PLATFORM_LAUNCH_RESTART_COUNT"]
print("training: step", restarts, "rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
while not (folder / "finish").exists():
    if (folder / f"fail-{restarts}-{rank}").exists():
        raise ValueError("the data is wrong")
    time.sleep(0.1)
"""


def test_job_continues_without_node_0_and_grows_again(tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)

    def run(rank: int, host: Host, folder: str) -> Node:
        variables = {
            "SKYPILOT_TASK_ID": "lab",
            "SKYPILOT_NODE_IPS": "\n".join(machine.name for machine in machines),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_NODES": str(NNODES),
        }
        options = ("--min-nodes", "2", "--max-restarts", "3", "--node-timeout", "5")
        logs = tmp_path / folder
        return start(
            host, rank, NNODES, str(tmp_path), logs=logs, options=options, env=variables, script=script
        )

    with hosts(NNODES) as machines:
        nodes = [run(rank, host, "first") for rank, host in enumerate(machines)]

        def text() -> str:
            return "\n\n".join(node.text for node in nodes)

        def trains(restarts: int, *ranks: int | None) -> None:
            said = [
                f"training: step {restarts} rank {rank} of {sum(one is not None for one in ranks)}"
                for rank in ranks
            ]
            until(
                lambda: all(
                    node.said(line)
                    for node, line, rank in zip(nodes, said, ranks, strict=True)
                    if rank is not None
                ),
                text,
            )

        try:
            trains(0, 0, 1, 2)
            kill_everything(machines[0])
            trains(1, None, 1, 0)
            assert nodes[1].said("[job-moved]"), text()
            assert nodes[1].said("[fewer-nodes nodes=2 nnodes=3]"), text()

            lost, nodes[0] = nodes[0], run(0, machines[0], "again")
            until(lambda: nodes[0].said("[spare-waits]"), text)
            (tmp_path / "fail-1-1").touch()
            trains(2, 2, 1, 0)

            (tmp_path / "finish").touch()
            assert [node.code() for node in nodes] == [0, 0, 0], text()
            assert nodes[1].said("[nodes-trained]"), text()
            assert lost.code() != 0
        finally:
            for host in machines:
                kill_everything(host)
