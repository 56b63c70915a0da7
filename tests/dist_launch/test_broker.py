"""A real broker and a command that asks it, without nodes."""

from __future__ import annotations

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
from tests.dist_launch.test_cluster import CLUSTER
from tests.lab.waiting import LIMIT_S, until

SSH = {"ssh_port": None, "ssh_user": None, "key": None}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[WaitFolder]:
    found = WaitFolder.beside(tmp_path / "info.json")
    found.create()
    write_cluster(found.cluster_file, CLUSTER)
    broker = subprocess.Popen(helper.command("dist-launch-broker", str(found.path), "/nowhere/key"))
    try:
        until(found.socket.exists)
        yield found
    finally:
        broker.terminate()
        broker.wait(LIMIT_S)


def test_what_the_broker_did_not_foresee_is_told_to_the_command(folder: WaitFolder, tmp_path: Path) -> None:
    job = JobRequest("job", None, "/job.sh", ("bash",), (), "/", {}, 1.0, False, False, str(tmp_path), "now")
    run = {"do": "run", "job": asdict(job), "archive": "/nowhere/code.tar.gz", "ssh": SSH}
    with pytest.raises(LaunchError, match=r"cannot do this: FileNotFoundError: .*/nowhere/code"):
        send_request(folder, run)
    with pytest.raises(LaunchError, match="no node 77") as refused:  # it serves the next one
        send_request(folder, {"do": "status", "nodes": "77", "ssh": SSH})
    assert refused.value.exit_code == UsageError.exit_code
