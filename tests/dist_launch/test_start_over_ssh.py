"""``init --hosts … --start``: every node of a job, started over ssh as its user has set it up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.dist_launch.lab import ROOT, Node, make, requires_ssh, script, sshd
from tests.lab.netns import hosts, requires_netns
from tests.lab.waiting import LIMIT_S, until

pytestmark = [requires_netns, requires_ssh]

# Stands for the launcher: what each node was told, and how long it runs, is seen from outside.
ENTRYPOINT = """#!/bin/bash
rank=$4
trap 'touch asked$rank; exit 143' TERM
for argument; do echo "[node $rank] told <$argument>"; done
echo "[node $rank] in $PWD with $VIRTUAL_ENV and $MODE, in $PLATFORM_LAUNCH_LANG" >&2
until [ -e end$rank ]; do sleep 0.05; done
exit "$(cat end$rank)"
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Two hosts with SSH servers that let each other's user in; node0 knows them as gn1 and gn2."""
    folder = tmp_path_factory.mktemp("ssh")
    with hosts(2) as made, ExitStack() as servers:
        nodes = make(made, folder)
        first, _ = nodes
        secrets = first.home / ".ssh"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", secrets / "id_ed25519"], check=True
        )
        known, config = [], []
        for number, node in enumerate(nodes, 1):
            servers.enter_context(sshd(node, folder / node.host.name / "sshd"))
            shutil.copy(secrets / "id_ed25519.pub", node.home / ".ssh" / "authorized_keys")
            public = (folder / node.host.name / "sshd" / "host_key.pub").read_text()
            known.append(f"[{node.host.address}]:2025 {public}")
            config.append(f"Host gn{number}\n  HostName {node.host.address}\n  Port 2025\n")
        (secrets / "config").write_text("".join(config))
        (secrets / "known_hosts").write_text("".join(known))
        yield nodes


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder that both hosts see, with a name that a shell would split."""
    folder = tmp_path / "it's my job"
    folder.mkdir()
    script(folder / "entry point.sh", ENTRYPOINT).chmod(0o755)
    return folder


def start(node: Node, work: Path, *arguments: str, hosts: str = "gn[1-2]") -> subprocess.Popen[str]:
    entry = ["--entrypoint", str(work / "entry point.sh"), "--name", "demo"]
    flags = ["--gpus-per-node", "0", *entry, "--hosts", hosts, "--script", "my train.py", "--start"]
    env = {**node.env, "VIRTUAL_ENV": "/my venv", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "platform_launch", "init", *flags, *arguments]
    return node.host.popen(command, env=env, cwd=work, stdin=subprocess.DEVNULL)


def first_lines(started: subprocess.Popen[str], wanted: int, text: str) -> list[str]:
    """Read until a text was seen on as many lines."""
    assert started.stdout is not None
    seen: list[str] = []
    while sum(text in line for line in seen) < wanted:
        line = started.stdout.readline()
        assert line, "".join(seen)
        seen.append(line)
    return seen


def test_every_host_gets_its_rank_and_each_argument_as_it_was_written(pair: list[Node], work: Path) -> None:
    flags = ["--env", "MODE=x;touch planted"]
    hostile = ["a b", "$(touch planted)", "'\"`;&|", "two\nlines", ""]
    for rank in (0, 1):
        (work / f"end{rank}").write_text("0")
    for _ in range(2):  # the same command again finds its job.yaml as it wants it
        started = start(pair[0], work, *flags, "--", *hostile)
        said, _ = started.communicate(timeout=LIMIT_S)
        assert started.returncode == 0, said
    assert not (work / "planted").exists()
    for rank, host in enumerate(("gn1", "gn2")):
        told = "".join(f"{line}\n" for line in said.splitlines() if line.startswith(f"[{host}] "))
        topology = [
            "--nnodes",
            "2",
            "--node-rank",
            str(rank),
            "--master-addr",
            pair[0].host.address,
            "--job-name",
        ]
        for argument in (*topology, "demo", *hostile[:3], ""):
            assert f"[{host}] told <{argument}>\n" in told
        assert f"[{host}] told <two\n[{host}] lines>\n" in told
        assert f"[{host}] in {work} with /my venv and x;touch planted, in en\n" in told
    assert "[SUCCESS] succeeded on 2 of 2 nodes after" in said


def test_the_first_failure_is_the_exit_code_whatever_follows_from_it(pair: list[Node], work: Path) -> None:
    started = start(pair[0], work)
    first_lines(started, 2, "with /my venv")
    (work / "end1").write_text("7")
    first_lines(started, 1, "gn2: ended with exit code 7")
    (work / "end0").write_text("9")
    said, _ = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 7
    assert "first on gn2; exit code 7" in said


def test_a_host_that_ssh_cannot_reach_ends_the_others(pair: list[Node], work: Path) -> None:
    started = start(pair[0], work, hosts="gn1,node1")  # node1: nobody listens on port 22
    said, _ = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 255
    assert "[node1] ssh: connect to host node1 port 22: Connection refused" in said
    assert "first on node1; exit code 255" in said  # and gn1 has ended, which waits for its file


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_nothing_runs_on_when_it_is_interrupted_or_killed(
    pair: list[Node], work: Path, number: signal.Signals, code: int
) -> None:
    started = start(pair[0], work)
    first_lines(started, 2, "with /my venv")
    os.kill(started.pid, number)
    started.communicate(timeout=LIMIT_S)
    assert started.returncode == code
    until(
        lambda: all((work / f"asked{rank}").exists() for rank in (0, 1)),
        lambda: str(sorted(path.name for path in work.iterdir())),
    )
