"""dist-launch kill, status, hosts, verify, ssh: what runs where, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.dist_launch.lab import (
    Node,
    eventually,
    jobs_on,
    make,
    requires_ssh,
    script,
    waiting,
)
from tests.lab.cgroup import SHOW_GROUPS
from tests.lab.netns import hosts, requires_netns
from tests.lab.waiting import LIMIT_S

pytestmark = [requires_netns, requires_ssh]

# A daemon as daemons are: a session of its own, no parent, no environment.
_DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(3000)
"""


@contextmanager
def running(cluster: list[Node], job: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has started on every node; it must have ended when the block is left."""
    process = cluster[0].start("run", *options, job)
    try:
        eventually("the job starts", lambda: all(jobs_on(node) for node in cluster))
        time.sleep(0.3)
        yield process
        process.wait(LIMIT_S)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_kill_ends_every_process_of_the_job_and_says_which(cluster: list[Node], tmp_path: Path) -> None:
    daemon = script(tmp_path / "daemon.py", _DAEMON)
    job = script(
        tmp_path / "job.sh",
        f"(setsid sleep 3000 &)\n{sys.executable} {daemon} {tmp_path}/daemon.$RANK\n"
        f"env -i {sys.executable} {daemon} {tmp_path}/bare.$RANK\nsleep 3000",
    )
    with running(cluster, job) as process:
        eventually("daemons start", lambda: sum(bool(p.read_text()) for p in tmp_path.glob("*.[0-3]")) == 8)
        daemons = [int(path.read_text()) for path in tmp_path.glob("*.[0-3]")]
        done = cluster[0].dist_launch("kill")
        assert done.returncode == 0, done.stderr
        assert process.wait(LIMIT_S) == 143
    assert done.stdout.count("(sleep 3000)") == 8
    assert "rank-2 (node2, 10.213.0.3): ended pid" in done.stdout
    assert not any(map(alive, daemons))
    assert not any(jobs_on(node) for node in cluster)


def test_force_kills_what_ignores_signals_even_without_its_leader(
    cluster: list[Node], tmp_path: Path
) -> None:
    job = script(
        tmp_path / "job.sh", "trap '' TERM INT HUP; (setsid sh -c 'trap \"\" TERM; sleep 3010' &)\nsleep 302"
    )
    with running(cluster, job):
        record = json.loads((cluster[1].state / "jobs" / "default.json").read_text())
        os.kill(record["leader"], signal.SIGKILL)
        done = cluster[0].dist_launch("kill", "--force")
        assert done.returncode == 0, done.stderr
    assert not any(jobs_on(node) for node in cluster)
    assert not list((cluster[1].state / "jobs").iterdir())


def test_only_the_control_group_knows_a_daemon_whose_leader_is_gone(tmp_path: Path) -> None:
    with hosts(2) as made:
        seen = made[0].run([*SHOW_GROUPS, "mkdir", f"/sys/fs/cgroup/{tmp_path.name}"])
        if seen.returncode:
            pytest.skip(f"no control group can be made here: {seen.stderr.strip()}")
        made[0].run([*SHOW_GROUPS, "rmdir", f"/sys/fs/cgroup/{tmp_path.name}"])
        nodes = make(made, tmp_path)
        for node in nodes:
            node.before = SHOW_GROUPS
        with waiting(nodes):
            daemon = script(tmp_path / "daemon.py", _DAEMON)
            job = script(
                tmp_path / "job.sh", f"env -i {sys.executable} {daemon} {tmp_path}/bare.$RANK\nsleep 3000"
            )
            with running(nodes, job):
                eventually("daemons start", lambda: len(list(tmp_path.glob("bare.?"))) == 2)
                daemons = [int(path.read_text()) for path in tmp_path.glob("bare.?")]
                record = json.loads((nodes[1].state / "jobs" / "default.json").read_text())
                os.kill(record["leader"], signal.SIGKILL)
                done = nodes[0].dist_launch("kill", "--force")
                assert done.returncode == 0, done.stderr
            assert not any(map(alive, daemons))
            left = made[0].run([*SHOW_GROUPS, "ls", "/sys/fs/cgroup"])
            assert Path(record["group"]).parent == Path("/sys/fs/cgroup")
            assert Path(record["group"]).name not in left.stdout


def test_a_run_ends_although_an_orphan_of_a_killed_leader_holds_its_output(
    cluster: list[Node], tmp_path: Path
) -> None:
    """Two runs at once: one loses its leader on this node, the other one behind SSH."""
    daemon = script(tmp_path / "daemon.py", _DAEMON)
    places = {"here": cluster[0], "there": cluster[2]}
    with ExitStack() as runs:
        processes = {}
        for name, node in places.items():
            bare = tmp_path / name
            start = f"env -i {sys.executable} {daemon} {bare}"
            job = script(tmp_path / f"{name}.sh", f"test $RANK = {node.rank} && {start}\nsleep 3000")
            processes[name] = runs.enter_context(running(cluster, job, "--name", name))
            eventually("the daemon starts", lambda bare=bare: bare.exists() and bare.read_text())
            runs.callback(os.kill, int(bare.read_text()), signal.SIGKILL)
        for name, node in places.items():
            record = json.loads((node.state / "jobs" / f"{name}.json").read_text())
            for pid in (record["leader"], record["session"], *jobs_on(node, name)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for name, node in places.items():
            assert processes[name].wait(LIMIT_S) == 137
            output = processes[name].stdout
            assert output is not None
            said = f"rank-{node.rank} ({node.host.name}, {node.host.address}): ended with exit code 137"
            assert f"{said}; stopping the other 3" in output.read()
    assert not any(jobs_on(one) for one in cluster)


def test_kill_spares_waits_strangers_and_look_alikes(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "sleep 3000")
    look_alike = script(tmp_path / "dist-launch-default", "exec sleep 2990")
    stranger = cluster[1].host.popen(
        ["bash", str(look_alike)], env={"DIST_LAUNCH_JOB": "default"}, stdout=subprocess.DEVNULL
    )
    try:
        with running(cluster, job):
            assert cluster[0].dist_launch("kill", "--force").returncode == 0
        assert stranger.poll() is None
        assert all(node.process is not None and node.process.poll() is None for node in cluster)
        assert cluster[0].dist_launch("verify").returncode == 0
    finally:
        stranger.kill()
        stranger.communicate()


def test_kill_by_name_leaves_the_other_job_alone(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "sleep 3000")
    with running(cluster, job, "--name", "one"), running(cluster, job, "--name", "two") as two:
        assert cluster[0].dist_launch("kill", "--name", "one").returncode == 0
        assert two.poll() is None
        assert cluster[0].dist_launch("kill").stdout.count("(sleep 3000)") == 4


def test_kill_with_nothing_to_kill_says_so(cluster: list[Node]) -> None:
    done = cluster[0].dist_launch("kill")
    assert (done.returncode, done.stdout.count("nothing ran")) == (0, 4)


def test_processes_that_outlive_their_command_do_not_outlive_the_run(
    cluster: list[Node], tmp_path: Path
) -> None:
    job = script(tmp_path / "job.sh", "(setsid sleep 3000 &)\nexit 0")
    done = cluster[0].dist_launch("run", job)
    assert done.returncode == 0
    assert "stopping processes left behind by the job: sleep" in done.stderr
    assert not any(jobs_on(node) for node in cluster)


def test_status_says_what_runs_where_since_when(cluster: list[Node], tmp_path: Path) -> None:
    with running(cluster, script(tmp_path / "job.sh", "sleep 3000"), "--name", "long"):
        table = cluster[0].dist_launch("status").stdout
        nodes = json.loads(cluster[0].dist_launch("status", "--format", "json").stdout)
        assert table.count("waits  long: 2 processes") == 4
        for node in nodes:
            (job,) = node["answer"]["jobs"]
            assert (job["name"], job["led"]) == ("long", True)
            assert job["since"] in table
        cluster[0].dist_launch("kill")
    assert cluster[0].dist_launch("status").stdout.count("nothing") == 4


def test_hosts_are_listed_on_every_node(cluster: list[Node]) -> None:
    for node in cluster:
        lines = node.dist_launch("hosts").stdout.splitlines()
        assert [line.split()[:3] for line in lines[1:]] == [
            [f"rank-{n}", f"node{n}", f"10.213.0.{n + 1}"] for n in range(4)
        ]
        assert lines[1 + node.rank].endswith("this node")


def test_ssh_reaches_a_node_by_its_alias_from_anywhere(cluster: list[Node]) -> None:
    done = cluster[0].dist_launch("ssh", "rank-2", "hostname")
    assert (done.returncode, done.stdout) == (0, "node2\n")
    # The alias works for OpenSSH itself: in the user's configuration, and in /etc/hosts.
    plain = cluster[0].host.run(["ssh", "rank-3", "hostname; exit 5"], env=cluster[0].env)
    assert (plain.returncode, plain.stdout) == (5, "node3\n"), plain.stderr
    assert "10.213.0.4 rank-3" in (cluster[0].host.etc / "hosts").read_text()


def test_a_plain_command_on_all_gives_the_first_failure(cluster: list[Node]) -> None:
    done = cluster[0].dist_launch("ssh", "all", "sh", "-c", "hostname; test $(hostname) != node2 || exit 9")
    assert done.returncode == 9
    assert sorted(done.stdout.splitlines()) == [f"[rank-{n}] node{n}" for n in range(4)]


def test_verify_says_what_fails_on_which_node(cluster: list[Node]) -> None:
    assert cluster[0].dist_launch("verify").stdout.count(": ok: ") == 4
    keys, environment = cluster[1].state / "authorized_keys", cluster[2].state / "environment.json"
    kept, away = keys.read_text(), environment.with_suffix(".away")
    try:
        keys.write_text("")
        environment.rename(away)
        cluster[3].host.cut()
        done = cluster[0].dist_launch("verify")
    finally:
        cluster[3].host.heal()
        keys.write_text(kept)
        away.rename(environment)
    lines = done.stdout.splitlines()
    assert done.returncode == 75
    assert lines[0].startswith("rank-0 (node0, 10.213.0.1): ok")
    refused = f"FAILS: 10.213.0.2:2025 refused the key {cluster[0].state}/id_ed25519 for user root: it is not"
    assert refused in lines[1]
    assert "FAILS: the variables that wait captured cannot be read" in lines[2]
    assert "FAILS: 10.213.0.4:2025 does not answer within 10 s" in lines[3]
    assert cluster[0].dist_launch("verify").returncode == 0
