"""A real broker and a command that asks it, without nodes."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from platform_launch import helper
from platform_launch.dist_launch.broker_client import send_request
from platform_launch.dist_launch.cluster import write_cluster
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.job_request import JobRequest
from platform_launch.errors import LaunchError, UsageError
from platform_launch.observe.control import short_path
from tests.dist_launch.test_cluster import CLUSTER
from tests.lab.waiting import LIMIT_S, until

SSH = {"ssh_port": None, "ssh_user": None, "key": None}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[WaitFolder, int]]:
    found = WaitFolder.beside(tmp_path / "info.json")
    found.create()
    write_cluster(found.cluster_file, CLUSTER)
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    broker = subprocess.Popen(helper.command("dist-launch-broker", str(found.path), str(key)))
    try:
        until(found.socket.exists)
        yield found, broker.pid
    finally:
        broker.terminate()
        broker.wait(LIMIT_S)


@pytest.fixture
def folder(broker: tuple[WaitFolder, int]) -> WaitFolder:
    return broker[0]


def test_what_the_broker_did_not_foresee_is_told_to_the_command(folder: WaitFolder, tmp_path: Path) -> None:
    job = JobRequest(
        "job", None, "/job.sh", ("bash",), (), "/", {}, 1.0, False, False, str(tmp_path), "now", "en"
    )
    run = {"do": "run", "job": asdict(job), "archive": "/nowhere/code.tar.gz", "ssh": SSH}
    with pytest.raises(LaunchError, match=r"cannot do this: FileNotFoundError: .*/nowhere/code"):
        send_request(folder, run)
    with pytest.raises(LaunchError, match="no node 77") as refused:  # it serves the next one
        send_request(folder, {"do": "status", "nodes": "77", "ssh": SSH})
    assert refused.value.exit_code == UsageError.exit_code


def test_a_broker_without_a_free_descriptor_serves_once_it_has_one(broker: tuple[WaitFolder, int]) -> None:
    """As rank 0 of a thousand nodes, each a connection that is kept."""
    folder, pid = broker
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, limits[1]))
    before = pauses(pid)
    with socket.socket(socket.AF_UNIX) as asking, short_path(folder.socket) as path:
        asking.settimeout(LIMIT_S)
        asking.connect(path)
        until(lambda: pauses(pid) > before)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        socket.send_fds(asking, [b"\0"], [1, 2])
        asking.sendall(json.dumps({"do": "status", "nodes": "77", "ssh": SSH}).encode() + b"\n")
        assert b"no node {rank}" in asking.recv(4096)


def pauses(pid: int) -> int:
    """Return how often a process has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
