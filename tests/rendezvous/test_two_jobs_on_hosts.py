"""Two jobs on the same hosts with one MASTER_PORT and no id: one of them trains, the other one is refused."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab.netns import Host, hosts, requires_netns
from tests.rendezvous.cluster import Node, start

pytestmark = requires_netns

# As torchrun does, rank 0 listens on MASTER_PORT for as long as the job trains.
TRAINS = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
print(f"trains as {sys.argv[1]}", flush=True)  # one write, which no line of the launcher divides
time.sleep(float(sys.argv[2]))
"""
_SECONDS = 8.0


def play(machines: tuple[Host, ...], folder: Path, order: Sequence[tuple[str, int, float | None]]) -> str:
    """Start the nodes of both jobs in an order, and return which job trained.

    After each comes a pause in seconds; None: until it looks for the others.
    """
    script = folder / "train.py"
    script.write_text(TRAINS)
    nodes = dict[tuple[str, int], Node]()
    for job, rank, pause_s in order:
        nodes[job, rank] = start(
            machines[rank],
            rank,
            2,
            job,
            str(_SECONDS),
            logs=folder / job,
            options=("--roll-call-timeout", "40"),
            script=script,
        )
        if pause_s is None:
            nodes[job, rank].when("roll-call-opened")
        else:
            time.sleep(pause_s)
    codes = {key: node.code() for key, node in nodes.items()}
    text = "\n\n".join(f"{key}: {codes[key]}\n{node.text}" for key, node in nodes.items())
    trained = {key for key, node in nodes.items() if node.said(f"trains as {key[0]}")}
    (job,) = {key[0] for key in trained} if len(trained) == 2 else ("",)
    other = "B" if job == "A" else "A"
    refused = {codes[other, rank] for rank in (0, 1)} == {75}
    named = nodes[other, 0].said("belongs to another run") and nodes[other, 1].said(f"train.py {other} ")
    right = job and [codes[job, rank] for rank in (0, 1)] == [0, 0] and refused and named
    assert right, f"{order}\n{text}"
    return job


@pytest.mark.parametrize(
    ("order", "winner"),
    [
        ("A0 B1 B0 A1", "A"),  # B's node 1 finds A's node 0 before A's own node 1 does
        ("A1 B0 A0 B1", "B"),  # A's node 1 waits for its node 0, and finds B's
    ],
)
def test_one_of_two_jobs_with_one_port_is_refused(order: str, winner: str, tmp_path: Path) -> None:
    with hosts(2) as machines:
        assert play(machines, tmp_path, [(one[0], int(one[1]), None) for one in order.split()]) == winner


@pytest.mark.nightly
def test_hundred_random_starts_of_two_jobs(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with hosts(2) as machines:
        for number in range(100):
            folder = tmp_path / str(number)
            folder.mkdir()
            nodes = chance.sample([("A", 0), ("A", 1), ("B", 0), ("B", 1)], 4)
            play(machines, folder, [(*node, chance.choice((0.0, 0.0, 0.3, 1.0, 2.0))) for node in nodes])
