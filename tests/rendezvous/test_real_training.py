"""accelerate, DeepSpeed and the example training on two hosts: killed on one, the job resumes."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.netns import hosts, requires_netns
from tests.rendezvous.cluster import ROOT, Node, processes_on


@pytest.mark.nightly
@requires_netns
@pytest.mark.train
def test_job_killed_on_one_node_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [
        *(str(ROOT / "start_multinode_platform.sh"), "--example", "taehv", "--max-restarts", "1"),
        *(
            "--config",
            str(ROOT / "configs" / "taehv_config_small.py"),
            "--log-dir",
            str(tmp_path / "logs"),
            "--",
        ),
        *(
            "--output-dir",
            str(run),
            *("--height", "32", "--width", "32"),
            *("--max-train-steps", "48", "--checkpoint-every", "4", "--log-every", "2"),
        ),
    ]
    with hosts(2) as machines:
        nodes = [
            Node(
                machine.popen(
                    command,
                    env={
                        "WORLD_SIZE": "2",
                        "RANK": str(rank),
                        "MASTER_ADDR": "node0",
                        "MASTER_PORT": "29500",
                        "VIRTUAL_ENV": sys.prefix,
                        "OMP_NUM_THREADS": "1",
                    },
                )
            )
            for rank, machine in enumerate(machines)
        ]
        nodes[0].when("roll call: all 2 nodes are connected, and their configurations match")
        nodes[0].when("Step 6/48")
        assert list(run.glob("checkpoints/checkpoint-*"))
        # The workers, as the kernel would for lack of memory; the launcher lives.
        for pid in processes_on(machines[1]):
            # Some end by themselves, or with their parent.
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"examples/taehv/train.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        codes = [node.code() for node in nodes]
    everything = "\n\n".join(node.text for node in nodes)
    assert codes == [0, 0], everything
    assert nodes[0].said("World size: 2"), everything
    assert nodes[1].said("this is worker node 1 of 2: joining node0:29500"), everything
    assert nodes[1].said("GLOO_SOCKET_IFNAME="), everything
    for rank, node in enumerate(nodes):
        assert [line for _, line in node.lines if not line.startswith(f"[node {rank}] ")] == []
        record = json.loads(next((tmp_path / "logs").glob(f"*node{rank}_*.json")).read_text())
        assert record["outcome"]["exit_code"] == 0
        assert record["topology"]["node_rank"] == rank
        assert record["versions"]["torch"]
    for node in nodes:
        assert node.said("[ERROR] node 1, node1 (10.213.0.2): the training ended with"), everything
        assert node.said("[WARN] restart 1 of 1: the nodes connect again"), everything
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(record["step"] for record in steps) == 48
    assert any("resum" in line.lower() for _, line in nodes[0].lines), everything
