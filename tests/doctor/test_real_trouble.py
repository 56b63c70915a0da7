"""Machines that are really in trouble: full disks, stale locks, name servers that keep silent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FakeNvml
from tests.lab.disk import requires_mount
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.nvml import fake
from tests.lab.waiting import LIMIT_S

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def quick(script: Path, *options: str) -> list[str]:
    own = ["--quick", "--format", "json", "--script", str(script), "--log-dir", str(script.parent)]
    return [sys.executable, str(MAIN), "doctor", *own, *options]


def findings(text: str) -> dict[str, dict[str, Any]]:
    return {finding["id"]: finding for finding in json.loads(text)["findings"]}


def with_mount(folder: Path | str, options: str, argv: list[str], env: dict[str, str]) -> str:
    """Run a command where a folder is another file system, which nobody else sees."""
    mount = 'mount -t tmpfs -o "$0" tmpfs "$1" || exit 77; shift; exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, options, str(folder), *argv],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(f"this machine does not let a file system be mounted: {done.stderr.strip()}")
    return done.stdout


@requires_mount
def test_the_shared_memory_of_a_container_is_too_small_for_eight_gpus(
    script: Path, fake_nvml: FakeNvml
) -> None:
    found = findings(with_mount("/dev/shm", "size=64m", quick(script), fake_nvml(*fake.h100s(8))))
    assert "64 MiB are free in /dev/shm of 64 MiB" in found["shm-small"]["what"]
    assert "--shm-size" in found["shm-small"]["hint"]


@requires_mount
def test_an_output_folder_without_room_is_an_error(script: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    argv = ["sh", "-c", 'head -c 9m /dev/zero > "$0/all" 2>/dev/null; exec "$@"', str(full)]
    argv += [*quick(script), "--", "--output_dir", str(full / "run")]
    disk = findings(with_mount(full, "size=1m", argv, {}))["disk-low"]
    assert disk["level"] == "error"
    assert "0 MiB of 1 MiB are free" in disk["what"]


@requires_mount
def test_a_read_only_log_folder_costs_the_log_only(script: Path, tmp_path: Path) -> None:
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    argv = [*quick(script), "--log-dir", str(frozen)]
    found = findings(with_mount(frozen, "ro,size=1m", argv, {}))["folder-not-writable"]
    assert (found["level"], found["where"]) == ("warning", str(frozen))
    assert "is mounted read-only" in found["what"]


def test_a_lock_that_a_killed_build_left_is_found(script: Path, tmp_path: Path) -> None:
    lock = tmp_path / "extensions" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 7200, time.time() - 7200))
    env = {**os.environ, "TORCH_EXTENSIONS_DIR": str(lock.parents[1])}
    done = subprocess.run(
        quick(script), env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert findings(done.stdout)["build-lock-stale"]["where"] == str(lock)


@pytest.fixture
def unserved() -> Iterator[Host]:
    """A host whose name server never answers: packets to it vanish, as behind a firewall."""
    with hosts(1) as (host,):
        (host.etc / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 node0\n")
        (host.etc / "resolv.conf").write_text("nameserver 10.213.0.99\noptions timeout:30 attempts:5\n")
        nobody = "ip neigh add 10.213.0.99 lladdr 02:00:00:00:00:99 dev eth0"
        assert host.run(nobody.split()).returncode == 0
        yield host


@requires_netns
def test_a_name_server_that_keeps_silent_is_named_and_not_waited_for(unserved: Host, script: Path) -> None:
    env = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "29500"}
    patient = unserved.popen(["getent", "hosts", "job-master-0"])
    done = unserved.run(quick(script), env=env)
    assert patient.poll() is None, "the resolver itself has given up before"
    patient.kill()
    patient.communicate()
    found = findings(done.stdout)
    assert "the resolver does not answer" in found["master-unresolved"]["what"]
    assert "5–10 s each" in found["reverse-dns-slow"]["what"]
    assert "resolves to 127.0.1.1" in found["hostname-loopback"]["what"]
    assert all(finding["level"] == "warning" for finding in found.values())
