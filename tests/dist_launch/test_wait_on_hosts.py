"""dist-launch wait on hosts: forming a cluster, what it adds and takes away, and what goes wrong."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from platform_launch.errors import InstallationError, NodesDisagreeError
from tests.dist_launch.lab import (
    LIMIT_S,
    Node,
    eventually,
    jobs_on,
    make,
    requires_ssh,
    script,
    sshd,
    waiting,
)
from tests.lab.netns import hosts, requires_netns
from tests.rendezvous.other_build import other_build

pytestmark = [requires_netns, requires_ssh]


def start_both(pair: list[Node], *options: str) -> None:
    for node in pair:
        node.wait(*options)
    pair[0].says("all 2 nodes wait")
    pair[1].says("node 1 of 2 waits")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Two hosts that wait, for tests that leave them as they are."""
    with hosts(2) as made:
        nodes = make(made, tmp_path_factory.mktemp("calm"))
        with waiting(nodes):
            yield nodes


def files_of(node: Node) -> dict[str, str]:
    return {
        str(path.relative_to(node.home)): path.read_text(errors="replace")
        for path in sorted(node.home.rglob("*"))
        if path.is_file() and "logs" not in path.parts
    }


def test_a_wait_leaves_cleanly_and_takes_back_what_it_added(pair: list[Node]) -> None:
    mine = {"authorized_keys": "ssh-ed25519 AAAA me\n", "config": "Host mine\n  Port 7\n"}
    for node in pair:
        for name, text in mine.items():
            (node.home / ".ssh" / name).write_text(text)
    before = [files_of(node) for node in pair]
    hosts_before = [(node.host.etc / "hosts").read_text() for node in pair]
    start_both(pair, "--sshd")
    config = (pair[0].home / ".ssh" / "config").read_text()
    assert config.splitlines()[1] == f'Include "{pair[0].state}/ssh_config"'
    assert config.endswith(mine["config"])
    assert [
        node.leave(number) for node, number in zip(pair, (signal.SIGINT, signal.SIGTERM), strict=True)
    ] == [0, 0]
    assert [files_of(node) for node in pair] == before
    assert [(node.host.etc / "hosts").read_text() for node in pair] == hosts_before
    assert not any("could not be taken back" in node.text for node in pair)
    assert all("stopping this wait (no job runs on this node)" in node.text for node in pair)


def test_what_the_cluster_knows_is_written_for_its_owner_alone(calm: list[Node]) -> None:
    for node in calm:
        assert [member["host"] for member in node.cluster()["members"]] == ["node0", "node1"]
        for path in [node.info, node.state, *node.state.rglob("*")]:
            assert path.lstat().st_mode & 0o077 == 0 or path.is_socket(), path
    keys = (calm[1].state / "authorized_keys").read_text()
    assert keys.startswith("restrict,pty ssh-ed25519 ")
    assert keys.split()[2] == calm[0].cluster()["members"][0]["public_key"].split()[1]
    # Private keys stay where they were made.
    secret = (calm[0].state / "id_ed25519").read_text().splitlines()[2]
    assert not any(secret in text for text in files_of(calm[1]).values())
    environment = json.loads((calm[1].state / "environment.json").read_text())
    assert (environment["RANK"], environment["NCCL_SOCKET_IFNAME"]) == ("1", "=eth0")


def test_a_missing_node_is_named_until_time_is_up(pair: list[Node]) -> None:
    pair[0].wait("--sshd", "--timeout", "2")
    pair[1].wait("--sshd", "--timeout", "2", env={"MASTER_PORT": "29600"})  # nobody is there
    assert [node.code() for node in pair] == [75, 75]
    assert "1 of 2 nodes missing: node 1; never connected; gave up after 2 s" in pair[0].text
    assert not pair[0].state.exists()
    assert "node 0 was not reached in" in pair[1].text


def test_a_node_with_another_version_is_named_on_both_and_may_come_again(
    pair: list[Node], tmp_path: Path
) -> None:
    other = other_build(tmp_path / "other")
    pair[0].wait("--sshd")
    pair[1].wait("--sshd", env={"PYTHONPATH": str(other)})
    assert pair[1].code() == NodesDisagreeError.exit_code
    for node in pair:
        node.says("the launchers do not understand each other: version")
        node.says("use one image, or one version of platform-launch, on all nodes")
    pair[1].wait("--sshd")
    pair[0].says("all 2 nodes wait")


def test_a_node_that_restarts_rejoins_with_a_new_host_key(pair: list[Node], tmp_path: Path) -> None:
    start_both(pair, "--sshd")
    job = script(tmp_path / "job.sh", "echo done")
    assert pair[0].dist_launch("run", job).stdout.count("done") == 2
    first = pair[0].cluster()["members"][1]["host_key"]
    pair[1].kill()
    pair[1].wait("--sshd")
    pair[1].says("node 1 of 2 waits")
    pair[0].says("node 1 is back, restarted on node1")
    eventually("rank 0 knows the new key", lambda: pair[0].cluster()["members"][1]["host_key"] != first)
    assert pair[0].dist_launch("run", job).stdout.count("done") == 2


def test_after_a_killed_wait_verify_and_run_agree(pair: list[Node], tmp_path: Path) -> None:
    start_both(pair, "--sshd")
    job = script(tmp_path / "job.sh", "echo done")
    assert pair[0].dist_launch("run", job).stdout.count("done") == 2
    pair[1].kill()
    verified = pair[0].dist_launch("verify")
    assert "rank-1 (node1, 10.213.0.2): FAILS" in verified.stdout
    ran = pair[0].dist_launch("run", job)  # over the connection that is kept
    assert ran.returncode == 66
    assert "was started nowhere: 1 of 2 nodes cannot run it: rank-1 (node1, 10.213.0.2)" in ran.stderr
    assert "its dist-launch wait has ended" in ran.stderr
    assert "done" not in ran.stdout


def test_two_nodes_with_one_rank_cannot_both_wait(calm: list[Node]) -> None:
    (calm[1].home / "second").mkdir()
    info = str(calm[1].home / "second" / "info.json")
    done = calm[1].dist_launch("wait", "--sshd", "--timeout", "20", env={"CLUSTER_INFO_FILE": info})
    assert done.returncode == 65
    assert "two nodes have rank 1" in done.stderr
    assert calm[0].dist_launch("verify").returncode == 0


def test_a_second_wait_in_one_place_is_refused(calm: list[Node]) -> None:
    done = calm[1].dist_launch("wait", "--sshd")
    assert done.returncode == 64
    assert "another dist-launch wait (pid" in done.stderr
    assert calm[0].dist_launch("verify").returncode == 0


def test_without_an_ssh_server_a_node_says_so(pair: list[Node]) -> None:
    done = pair[0].dist_launch("wait")
    assert done.returncode == InstallationError.exit_code
    assert "no SSH server listens on port 2025 of this node (SSH_PORT)" in done.stderr
    assert "hint:  pass --sshd" in done.stderr
    assert not pair[0].state.exists()


@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        ({"SSH_PORT": "ssh"}, 65, "SSH_PORT='ssh' is not a port"),
        ({"SSH_USER": "nobody-here"}, 64, "no such user on this node"),
        ({"SSH_KEY": "/nowhere/id"}, 66, "/nowhere/id (SSH_KEY) is not there"),
        ({"SSH_KEY": "~nobody-here/id"}, 66, "/~nobody-here/id (SSH_KEY) is not there"),
        ({"CLUSTER_INFO_FILE": "/proc/x/info"}, 66, "/proc/x/info.d cannot be created"),
        ({"INIT_MASTER_PORT": "29500"}, 65, "is MASTER_PORT too"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_added(
    pair: list[Node], variables: dict[str, str], code: int, message: str
) -> None:
    done = pair[0].dist_launch("wait", "--sshd", env=variables)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert files_of(pair[0]) == {}


def test_the_images_own_server_lets_rank_0_in_and_nobody_after_a_reboot(
    pair: list[Node], tmp_path: Path
) -> None:
    own = tmp_path / "own"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own)], check=True)
    keys = pair[1].home / ".ssh" / "authorized_keys"
    keys.write_text("ssh-ed25519 AAAA me\n")
    with sshd(pair[0], tmp_path / "sshd0"):
        with sshd(pair[1], tmp_path / "sshd1"):
            for node in pair:
                node.wait("--ssh-key", str(own))
            pair[0].says("all 2 nodes wait")
            lines = keys.read_text().splitlines()
            assert lines[0] == "ssh-ed25519 AAAA me"
            assert lines[1] == f"# >>> dist-launch node1 {pair[1].info} >>>"
            assert lines[2].startswith("restrict,pty ssh-ed25519")
            assert pair[0].dist_launch("verify").returncode == 0
            keys.write_text("ssh-ed25519 AAAA me\n")
            assert "refused the key" in pair[0].dist_launch("verify").stdout
        nobody = pair[0].dist_launch("verify").stdout
        assert "rank-1 (node1, 10.213.0.2): FAILS: nothing listens at 10.213.0.2:2025" in nobody
        with sshd(pair[1], tmp_path / "sshd1"):
            changed = pair[0].dist_launch("verify").stdout
            assert (
                "rank-1 (node1, 10.213.0.2): FAILS: the host key at 10.213.0.2:2025 is not the one" in changed
            )
            plain = pair[0].dist_launch("ssh", "rank-1", "hostname")
            assert plain.returncode == 255
            assert "HOST IDENTIFICATION HAS CHANGED" in plain.stderr
        for node in pair:
            assert node.leave(signal.SIGQUIT) == 0
    assert keys.read_text() == "ssh-ed25519 AAAA me\n"
    assert own.exists()


def test_a_plain_user_waits_and_runs(tmp_path: Path) -> None:
    with hosts(2) as made:
        plain = ("unshare", "--user", "--map-user=1234", "--map-group=1234")
        if (tried := made[0].run([*plain, "true"])).returncode:
            pytest.skip(f"no process can be another user here: {tried.stderr.strip()}")
        nodes = make(made, tmp_path)
        for node in nodes:
            node.before = plain
            with (node.host.etc / "passwd").open("a") as users:
                users.write(f"trainer:x:1234:1234::{node.home}:/bin/bash\n")
        with waiting(nodes):
            assert nodes[0].dist_launch("verify").stdout.count(": ok: ") == 2
            done = nodes[0].dist_launch("run", script(tmp_path / "who.sh", "id -un"))
            assert sorted(done.stdout.splitlines()) == ["[rank-0] trainer", "[rank-1] trainer"], done.stderr
        assert [node.code() for node in nodes] == [0, 0]
        assert [list((node.home / ".ssh").iterdir()) for node in nodes] == [[], []]


def test_a_full_disk_is_named_and_recovered_from(pair: list[Node], tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(pair[1].home)], check=True)
    try:
        (pair[1].home / ".ssh").mkdir(mode=0o700)
        ballast = pair[1].home / "ballast"
        pair[0].wait("--sshd")
        pair[1].wait("--sshd")
        pair[1].says("started a private sshd")
        fill(ballast)
        pair[0].says("rank-1 (node1, 10.213.0.2): keys and cluster information could not be written here")
        assert "No space left on device" in pair[0].text
        ballast.unlink()
        pair[0].says("all 2 nodes wait")
        fill(ballast)
        done = pair[0].dist_launch("verify")
        assert "rank-1 (node1, 10.213.0.2): FAILS" in done.stdout
        assert "No space left on device" in done.stdout
        assert pair[1].leave() == 0
    finally:
        subprocess.run(["umount", "-l", str(pair[1].home)], check=True)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 64):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_zombies_of_others_are_reaped(calm: list[Node], tmp_path: Path) -> None:
    done = calm[0].dist_launch("run", script(tmp_path / "job.sh", "(sleep 0.2 &) ; (true &) ; exit 0"))
    assert done.returncode == 0
    assert calm[1].process is not None
    waiting = Path(f"/proc/{calm[1].process.pid}/task/{calm[1].process.pid}/children")

    def zombies() -> list[str]:
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in waiting.read_text().split()]
        return [stat for stat in stats if stat.rpartition(")")[2].split()[0] == "Z"]

    eventually("no zombie is left", lambda: not zombies())


# Says so when it is asked to stop, and takes its time to save: until the test lets it.
SAVES = """
saves() {{
    touch {folder}/$RANK.saving
    until [ -e {folder}/go ]; do sleep 0.05; done
    echo saved $RANK
    exit
}}
trap saves TERM
touch {folder}/$RANK.started
sleep 1000 & wait
"""


@contextmanager
def running_job(pair: list[Node], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run on both nodes, which has started."""
    process = pair[0].start("run", script(folder / "job.sh", SAVES.format(folder=folder)))
    try:
        eventually("the job starts", lambda: len(list(folder.glob("*.started"))) == 2)
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


@pytest.mark.parametrize("private", [True, False], ids=["private sshd", "sshd of the image"])
def test_sigterm_to_a_wait_lets_its_job_save_and_reaches_rank_0_s_run(
    pair: list[Node], tmp_path: Path, private: bool
) -> None:
    with ExitStack() as stack:
        if not private:
            for node in pair:
                stack.enter_context(sshd(node, tmp_path / f"sshd{node.rank}"))
        start_both(pair, *(("--sshd",) if private else ()))
        run = stack.enter_context(running_job(pair, tmp_path))
        leaving = pair[1].process
        assert leaving is not None
        leaving.send_signal(signal.SIGTERM)
        eventually("the job is asked to stop", (tmp_path / "1.saving").exists)
        assert leaving.poll() is None, "the container would end before the job"
        (tmp_path / "go").touch()
        assert pair[1].code() == 0
        output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143, output
    assert "saved 1" in output
    assert "saved 0" in output
    assert "this node's dist-launch wait was asked to stop: stopping its job" in output
    assert "rank-1 (node1, 10.213.0.2): ended with exit code 143; stopping the other node" in output


def test_sigterm_to_rank_0_s_wait_lets_the_job_save_on_all_nodes(pair: list[Node], tmp_path: Path) -> None:
    start_both(pair, "--sshd")
    with running_job(pair, tmp_path) as run:
        leaving = pair[0].process
        assert leaving is not None
        leaving.send_signal(signal.SIGTERM)
        for rank in range(2):
            eventually("the job is asked to stop", (tmp_path / f"{rank}.saving").exists)
        assert leaving.poll() is None
        (tmp_path / "go").touch()
        output, _ = run.communicate(timeout=LIMIT_S)
        assert pair[0].code() == 0
    assert run.returncode == 143, output
    assert sorted(line[-1] for line in output.splitlines() if "saved" in line) == ["0", "1"]
    assert "dist-launch wait was asked to stop: stopping the job on all nodes" in output
    assert "stopping this wait and the jobs that run on this node" in pair[0].text


def test_a_wait_that_is_killed_takes_its_job_along_and_reaches_rank_0_s_run(
    pair: list[Node], tmp_path: Path
) -> None:
    start_both(pair, "--sshd")
    (tmp_path / "go").touch()
    with running_job(pair, tmp_path) as run:
        pair[1].kill()
        output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143, output
    assert "saved 1" in output
    assert "this node's dist-launch wait is gone" in output
    assert not jobs_on(pair[1])
