"""All nodes together, on real hosts: cut off, slow, walled in, doubled, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from platform_launch.rendezvous.listening import candidates
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import LIMIT_S, at_once, until
from tests.rendezvous.other_build import other_build

pytestmark = requires_netns

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"
# A small script, so that only what lies between the nodes is looked at.
OPTIONS = ("doctor", "--format", "json", "--launcher", "python")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("")
    return path


@pytest.fixture
def three() -> Iterator[tuple[Host, ...]]:
    with hosts(3) as made:
        yield made


def start(
    host: Host,
    rank: int,
    nnodes: int,
    script: Path,
    *options: str,
    main: Path = MAIN,
    stderr: int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start the doctor on one host as a platform does; the environment holds nothing else."""
    variables = {"WORLD_SIZE": str(nnodes), "RANK": str(rank), "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    logs = ("--log-dir", str(script.parent / "logs"))
    return host.popen(
        [sys.executable, main, *OPTIONS, "--script", script, *logs, *options],
        env={**variables, "CUDA_VISIBLE_DEVICES": "", **(env or {})},
        stderr=stderr,
    )


def findings_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, _ = process.communicate(timeout=LIMIT_S)
    findings: list[dict[str, Any]] = json.loads(out)["findings"]
    return findings


def between(findings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the errors and warnings, those of the node's own machine left out."""
    places = ("node ", "all", "pairs")
    return [f for f in findings if f["where"].startswith(places) and f["level"] != "info"]


def test_a_node_whose_launcher_is_not_understood_is_named_on_both(
    three: tuple[Host, ...], script: Path, tmp_path: Path
) -> None:
    other = other_build(tmp_path / "other") / "platform_launch" / "__main__.py"
    nodes = [start(three[0], 0, 2, script), start(three[1], 1, 2, script, main=other)]
    found = [between(findings_of(node)) for node in nodes]
    assert [(one["id"], one["where"]) for one in found[0]] == [("node-foreign", "node 1")]
    assert [one["id"] for one in found[1]] == ["meeting-failed"]
    for findings in found:
        assert "the launchers do not understand each other" in findings[0]["what"]
        assert "one image" in findings[0]["hint"]


def answers(running: Sequence[subprocess.Popen[str]]) -> list[list[dict[str, Any]]]:
    return [between(findings_of(process)) for process in running]


def everywhere(made: Sequence[Host], script: Path, *options: str) -> list[list[dict[str, Any]]]:
    return answers([start(h, r, len(made), script, *options) for r, h in enumerate(made)])


def tc(host: Host, rules: str) -> None:
    done = host.run(["tc", *f"qdisc add dev eth0 root {rules}".split()])
    if done.returncode:
        pytest.skip(f"this kernel cannot slow a link down: {done.stderr.strip()}")


def test_nodes_that_reach_each_other_are_measured_and_the_slow_one_is_named_by_all(
    three: tuple[Host, ...], script: Path
) -> None:
    tc(three[1], "tbf rate 100mbit burst 64kb latency 200ms")
    running = [start(host, rank, 3, script) for rank, host in enumerate(three)]
    for findings in map(findings_of, running):
        assert not [f for f in findings if f["level"] == "error"], findings
        measured = [f["what"] for f in findings if f["id"] == "collective-measured"]
        assert [what.partition(":")[0] for what in measured] == ["pairs of nodes (3)", "all 3 nodes together"]
        assert all("results correct" in what for what in measured)
        ((kind, where, what),) = [(f["id"], f["where"], f["what"]) for f in between(findings)]
        assert (kind, where) == ("node-slow", "node 1")
        assert "node1, 10.213.0.2" in what


def test_two_hosts_that_do_not_reach_each_other_are_named(three: tuple[Host, ...], script: Path) -> None:
    three[1].run(["ip", "route", "add", "blackhole", f"{three[2].address}/32"])
    for found in everywhere(three, script):
        places = {(f["id"], f["where"]) for f in found}
        # Of the two pairs that are left to compare, a busy machine may really measure one as slow.
        assert {place for place in places if not place[0].endswith("-slow")} == {
            ("link-broken", "node 1 → node 2"),
            ("link-broken", "node 2 → node 1"),
        }


def test_a_host_that_loses_large_packets_is_named_before_any_collective_hangs(
    three: tuple[Host, ...], script: Path
) -> None:
    three[2].lose_large_packets(1400)
    for found in everywhere(three, script):
        assert [(f["id"], f["where"]) for f in found] == [("node-unreachable", "node 2")]
        assert "packets of 1500 bytes are lost, small ones arrive" in found[0]["what"]
        assert "MTU" in found[0]["hint"]


@pytest.mark.nightly
def test_an_mtu_and_a_clock_that_differ_are_named_and_the_nodes_tried_all_the_same(
    three: tuple[Host, ...], script: Path, tmp_path: Path
) -> None:
    assert three[1].run(["ip", "link", "set", "eth0", "mtu", "1400"]).returncode == 0
    ahead = tmp_path / "ahead" / "sitecustomize.py"
    ahead.parent.mkdir()
    ahead.write_text("import time\nright = time.time\ntime.time = lambda: right() + 7200\n")
    fast = {"PYTHONPATH": str(ahead.parent)}
    nodes = [start(host, rank, 3, script, env=fast if rank == 2 else {}) for rank, host in enumerate(three)]
    for found in answers(nodes):
        named = {(f["id"], f["where"]) for f in found if not f["id"].endswith("-slow")}
        assert named == {("mtu-differs", "node 1"), ("clock-differs", "node 2")}


def test_what_is_in_the_way_is_told_while_the_nodes_wait(script: Path) -> None:
    with hosts(2) as made:
        nodes = [
            start(made[0], 0, 2, script, "--timeout", "60", stderr=subprocess.PIPE),
            start(made[1], 1, 2, script, "--master-addr", "nobody", stderr=subprocess.PIPE),
        ]
        said = [
            ["1 of 2 nodes missing: node 1"],
            ["[master-unresolved]", "no name server has answered for 'nobody' yet"],
        ]
        for node, lines in zip(nodes, said, strict=True):
            assert node.stderr is not None
            for words in lines:
                assert any(words in line for line in node.stderr), words
            assert node.poll() is None
            node.kill()
            node.communicate()


def test_two_nodes_of_one_rank_are_told_apart(three: tuple[Host, ...], script: Path) -> None:
    ranks = (0, 1, 1)
    running = []
    for host, rank in zip(three, ranks, strict=True):
        running.append(start(host, rank, 2, script))
        time.sleep(0.5)
    node0, *both = answers(running)
    assert [(f["id"], f["where"]) for f in node0] == [("node-duplicate", "node 1")], node0
    (refused,) = [found for found in both if found[0]["id"] == "meeting-failed"]
    assert "two nodes have rank 1" in refused[0]["what"]
    assert "every node needs its own rank" in refused[0]["hint"]


@pytest.mark.nightly
def test_a_host_that_is_cut_off_is_absent_before_the_nodes_met_and_silent_after(script: Path) -> None:
    """Both are found out by limits of a quarter and of two thirds of a minute, so at the same time."""
    at_once(partial(_cut_before, script), partial(_cut_after, script))


def _cut_before(script: Path) -> None:
    with hosts(3) as made:
        made[2].cut()
        node0, node1, node2 = everywhere(made, script, "--timeout", "15")
    assert [(f["id"], f["where"]) for f in node0] == [("node-absent", "node 2")]
    assert node1 == node0
    assert [f["id"] for f in node2] == ["meeting-failed"]
    assert f"node 0 was not reached in 15 s: node0:{candidates(29500)[0]}" in node2[0]["what"]


def _cut_after(script: Path) -> None:
    with hosts(3) as made:
        running = [start(host, rank, 3, script) for rank, host in enumerate(made)]
        worker = _wait_for_worker(made[2])
        made[2].cut()
        os.kill(worker, signal.SIGKILL)
        node0, node1, node2 = answers(running)
    assert "node-silent" in {f["id"] for f in node0} or "node 2" in {f["where"] for f in node0}
    assert node1 == node0
    assert [f["id"] for f in node2] == ["meeting-failed"]
    assert "node 0 does not answer any more" in node2[0]["what"]
    assert "check this node's network, and the output of node 0" in node2[0]["hint"]


def test_a_meeting_port_that_is_taken_names_its_owner(script: Path) -> None:
    with hosts(1) as (host,):
        listen = (
            f"import socket, time; s = [socket.create_server(('', port)) for port in {candidates(29500)}]; "
            "print(flush=True); time.sleep(90)"
        )
        owner = host.popen([sys.executable, "-c", listen])
        assert owner.stdout is not None
        owner.stdout.readline()
        ((finding,),) = answers([start(host, 0, 2, script, "--timeout", "5")])
        owner.kill()
        owner.communicate()
    assert finding["id"] == "meeting-failed"
    assert f"held by pid {owner.pid}" in finding["what"]


def _wait_for_worker(host: Host) -> int:
    """Return the process that takes part in the first collective on a host: a fork of what was started."""

    def forked() -> list[int]:
        found = []
        for pid in host.run(["sh", "-c", f"ip netns pids {host.namespace}"]).stdout.split():
            with suppress(OSError):
                if b"probes/collective.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
        return sorted(found)[1:]

    return until(forked, "no collective was started")[0]


@pytest.mark.nightly
def test_jax_runs_its_own_collective(script: Path) -> None:
    pytest.importorskip("jax", reason="needs jax")
    with hosts(2) as made:
        running = [start(host, rank, 2, script, "--jax") for rank, host in enumerate(made)]
        for findings in map(findings_of, running):
            assert not [f for f in findings if f["level"] == "error"], findings
            assert "collective-measured" in {f["id"] for f in findings}
