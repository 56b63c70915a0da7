"""A machine with other users: what they put where dist-launch looks is not used."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from platform_launch import helper
from platform_launch.dist_launch.broker_client import send_request
from platform_launch.dist_launch.cluster import write_cluster
from platform_launch.dist_launch.folder import WaitFolder, write_private
from platform_launch.errors import InputError
from tests.dist_launch.lab import DIST_LAUNCH, ROOT, eventually, requires_ssh
from tests.dist_launch.test_cluster import CLUSTER
from tests.lab.needs import requires_root
from tests.lab.waiting import LIMIT_S

STRANGER = 1234
CLIENTS = (["run", "job.sh"], ["ssh", "rank-1"], ["ssh", "all", "true"], ["kill"], ["status"], ["verify"])

pytestmark = requires_root


@pytest.fixture
def planted(tmp_path: Path) -> WaitFolder:
    """Cluster information as ``wait`` writes it, with a configuration that runs a program."""
    folder = WaitFolder.beside(tmp_path / "info.json")
    folder.create()
    write_cluster(folder.cluster_file, CLUSTER)
    write_private(folder.ssh_config, f"Host *\n  ProxyCommand touch {tmp_path}/was-run\n")
    (tmp_path / "job.sh").touch()
    return folder


def client(folder: WaitFolder, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CLUSTER_INFO_FILE": str(folder.cluster_file)}
    return subprocess.run(
        [*DIST_LAUNCH, *words],
        env=env,
        cwd=folder.path.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def refused(folder: WaitFolder, why: str) -> None:
    """See that no client uses what lies there."""
    for words in CLIENTS:
        done = client(folder, *words)
        assert (done.returncode, why in done.stderr) == (66, True), (words, done.stderr)
    assert not folder.path.with_name("was-run").exists()


def test_a_folder_that_a_stranger_made_is_used_by_no_client(planted: WaitFolder) -> None:
    os.chown(planted.path, STRANGER, STRANGER)
    refused(planted, f"{planted.path} is not used: it belongs to user {STRANGER}")


def test_a_folder_in_which_others_may_write_is_used_by_no_client(planted: WaitFolder) -> None:
    planted.path.chmod(0o777)
    refused(planted, "others may change it (mode 0777)")


def test_a_folder_that_is_a_link_is_used_by_no_client(planted: WaitFolder) -> None:
    elsewhere = planted.path.rename(planted.path.with_name("elsewhere"))
    planted.path.symlink_to(elsewhere)
    refused(planted, "it is a symbolic link")


@pytest.mark.parametrize("change", ["owner", "mode", "link"])
def test_cluster_information_of_a_stranger_is_used_by_no_client(planted: WaitFolder, change: str) -> None:
    path = planted.cluster_file
    if change == "owner":
        os.chown(path, STRANGER, STRANGER)
    elif change == "mode":
        path.chmod(0o666)
    else:
        path.symlink_to(path.rename(path.with_name("other.json")))
    for words in (["hosts"], ["run", "job.sh"], ["status"]):
        done = client(planted, *words)
        assert (done.returncode, "(CLUSTER_INFO_FILE) is not used: " in done.stderr) == (66, True), (
            done.stderr
        )


@requires_ssh
def test_openssh_itself_does_not_include_a_strangers_configuration(planted: WaitFolder) -> None:
    """What a killed ``wait`` leaves in ~/.ssh/config points into a folder that others may make later."""
    os.chown(planted.path, STRANGER, STRANGER)
    os.chown(planted.ssh_config, STRANGER, STRANGER)
    own = planted.path.with_name("config")
    own.write_text(f'Include "{planted.ssh_config}"\n')
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mkdir -p "$1" && mount -t tmpfs none "$1" && cp "$0" "$1/config" && ssh -oBatchMode=yes rank-1',
            str(own),
            str(Path(pwd.getpwuid(os.geteuid()).pw_dir, ".ssh")),  # where ssh looks, whatever HOME says
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "Bad owner or permissions" in done.stderr
    assert not planted.path.with_name("was-run").exists()


@contextmanager
def listening_as(user: int, folder: WaitFolder) -> Iterator[list[bytes]]:
    """A socket in our folder at which another user listens; gives what it received."""
    received: list[bytes] = []
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder.socket))
        child = os.fork()
        if child == 0:
            os.setuid(user)
            listening.listen(4)
            os.write(writing, b".")
            connection, _ = listening.accept()
            os.write(writing, connection.recv(4096) or b"nothing")
            os._exit(0)
        assert os.read(reading, 1) == b"."
        yield received
        received.append(os.read(reading, 4096))
        os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)


def test_nothing_is_sent_to_a_socket_of_another_user(planted: WaitFolder) -> None:
    refusal = pytest.raises(InputError, match=f"belongs to user {STRANGER}")
    with listening_as(STRANGER, planted) as received, refusal:
        send_request(planted, {"do": "status"})
    assert received == [b"nothing"]


def test_the_broker_serves_its_own_user_alone(planted: WaitFolder) -> None:
    broker = subprocess.Popen(
        helper.command("dist-launch-broker", str(planted.path), "/nonexistent"), stdin=subprocess.PIPE
    )
    try:
        eventually("the broker listens", lambda: planted.socket.exists() and answers(planted, os.geteuid()))
        planted.path.chmod(0o711)
        planted.socket.chmod(0o777)
        assert not answers(planted, STRANGER)
        assert answers(planted, os.geteuid())
    finally:
        broker.terminate()
        broker.communicate(timeout=LIMIT_S)


def answers(folder: WaitFolder, user: int) -> bool:
    """Tell whether the broker sends a process of a user anything."""
    child = os.fork()
    if child == 0:
        os.setuid(user)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(20)
                connection.connect(str(folder.socket))
                socket.send_fds(connection, [b"\0"], [1, 2])
                connection.sendall(
                    b'{"do": "verify", "nodes": "7", "ssh": {"ssh_port": null, "ssh_user": null, '
                    b'"key": null}}\n'
                )
                os._exit(0 if connection.recv(4096) else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
