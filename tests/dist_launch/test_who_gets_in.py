"""Who gets a shell on a waiting node: whoever holds the key that it met first, or that was named for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from platform_launch.dist_launch.key_trust import fingerprint
from platform_launch.rendezvous.listening import candidates
from tests.dist_launch import lab
from tests.dist_launch.lab import Node, eventually, requires_ssh, script
from tests.lab.netns import Host, requires_netns
from tests.lab.waiting import LIMIT_S, at_once

pytestmark = [requires_netns, requires_ssh]

SECRET = "0123456789abcdef"


def key_pair(path: Path) -> str:
    """Make a key pair and return its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def allowed(node: Node) -> str:
    """Return the key that may log in to a node."""
    return " ".join((node.state / "authorized_keys").read_text().split()[1:3])


def start_both(pair: list[Node], *, secret: str = "") -> None:
    for node in pair:
        node.wait("--sshd", env={"PLATFORM_LAUNCH_SECRET": secret} if secret else {})
    pair[0].says("all 2 nodes wait")
    pair[1].says("node 1 of 2 waits")


def runs_on_both(pair: list[Node], folder: Path) -> bool:
    return pair[0].dist_launch("run", script(folder / "job.sh", "echo done")).stdout.count("done") == 2


def test_rank_0_comes_back_with_its_key_and_another_one_is_refused_until_the_wait_is_started_anew(
    pair: list[Node], tmp_path: Path
) -> None:
    start_both(pair)
    first = allowed(pair[1])
    pair[0].kill()
    pair[0].wait("--sshd")
    pair[0].says("all 2 nodes wait")
    assert allowed(pair[1]) == first
    assert runs_on_both(pair, tmp_path)
    assert pair[0].leave() == 0
    pair[0].wait("--sshd")
    pair[1].says("the first key that it received")
    pair[0].says("restart this node's dist-launch wait")
    eventually("rank 0 lets no key in", lambda: allowed(pair[0]))
    second = allowed(pair[0])
    assert first != second
    for node in pair:
        assert fingerprint(first) in node.text
        assert fingerprint(second) in node.text
    assert allowed(pair[1]) == first
    assert not runs_on_both(pair, tmp_path)
    assert pair[1].leave() == 0
    pair[1].wait("--sshd")
    pair[0].says("all 2 nodes wait")
    assert allowed(pair[1]) == second
    assert runs_on_both(pair, tmp_path)


def test_a_key_that_is_named_on_a_node_wins_over_the_one_that_comes(pair: list[Node], tmp_path: Path) -> None:
    named = key_pair(tmp_path / "named")
    other = key_pair(tmp_path / "other")
    pair[0].wait("--sshd", "--ssh-key", str(tmp_path / "other"))
    pair[1].wait("--sshd", env={"SSH_PUBLIC_KEY": str(tmp_path / "named.pub")})
    pair[0].says("which its SSH_PUBLIC_KEY names")
    assert fingerprint(other) in pair[0].text
    assert fingerprint(named) in pair[0].text
    assert allowed(pair[1]) == named
    assert pair[0].leave() == 0
    pair[0].wait("--sshd", "--ssh-key", str(tmp_path / "named"))
    pair[0].says("all 2 nodes wait")
    assert runs_on_both(pair, tmp_path)


def test_a_named_key_that_is_not_there_ends_the_wait_at_once(pair: list[Node]) -> None:
    done = pair[1].dist_launch("wait", "--sshd", env={"SSH_PUBLIC_KEY": "/nowhere/key.pub"})
    assert done.returncode == 66
    assert "SSH_PUBLIC_KEY=/nowhere/key.pub cannot be read" in done.stderr


@contextmanager
def stranger(host: Host, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Let somebody on another host do what ``strangers.py`` says."""
    script = Path(lab.__file__).with_name("strangers.py")
    port = str(candidates(29500)[0])
    command = [sys.executable, script, words[0], "node0", port, *words[1:]]
    process = host.popen(command, env={"PYTHONPATH": str(lab.ROOT)})
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def test_who_claims_to_make_the_roster_gets_no_shell(tmp_path: Path) -> None:
    at_once(
        partial(_gets_no_shell, tmp_path / "open", secret=""),
        partial(_gets_no_shell, tmp_path / "sealed", secret=SECRET),
    )


def _gets_no_shell(folder: Path, *, secret: str) -> None:
    with lab.idle(2, folder, strangers=1) as (nodes, (host,)):
        start_both(nodes, secret=secret)
        _forges_the_roster(nodes, host, folder, secret)


def _forges_the_roster(nodes: list[Node], host: Host, folder: Path, secret: str) -> None:
    rightful = allowed(nodes[1])
    evil = key_pair(folder / "evil")
    with stranger(host, "forge", evil) as forging:
        assert forging.stdout is not None
        for line in forging.stdout:
            if line == "forged 4\n":
                break
        assert forging.poll() is None
    assert allowed(nodes[1]) == rightful
    login = host.run(
        [
            *("ssh", "-i", folder / "evil", "-p", "2025", "-o", "BatchMode=yes"),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "root@node1", "id"),
        ]
    )
    assert (login.returncode, "Permission denied" in login.stderr) == (255, True), login.stderr
    assert evil not in (nodes[0].info.read_text() + nodes[0].text)
    eventually("the cluster is as it was", lambda: runs_on_both(nodes, folder))


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[tuple[list[Node], Host]]:
    """Two hosts of a cluster, and one of somebody else in the same network."""
    with lab.idle(2, tmp_path, strangers=1) as (nodes, (host,)):
        yield nodes, host


def test_junk_is_turned_away_with_one_warning_each_and_ends_nothing(
    trio: tuple[list[Node], Host], tmp_path: Path
) -> None:
    nodes, host = trio
    start_both(nodes)
    with stranger(host, "junk") as leaving:
        assert leaving.wait(LIMIT_S) == 0
    nodes[0].says("turned away")
    assert nodes[1].leave() == 0
    nodes[1].wait("--sshd")
    nodes[1].says("node 1 of 2 waits")
    eventually("the cluster is as it was", lambda: runs_on_both(nodes, tmp_path))
    for node in nodes:
        assert "\x1b" not in node.text
        assert "\x07" not in node.text
        warnings = [line.partition("turned away")[2] for line in node.lines if "turned away" in line]
        assert len(warnings) == len(set(warnings))
    assert sum("turned away" in line for line in nodes[0].lines) >= 3, nodes[0].text


def test_with_a_secret_rank_0_may_come_back_with_another_key(pair: list[Node], tmp_path: Path) -> None:
    start_both(pair, secret=SECRET)
    first = allowed(pair[1])
    assert pair[0].leave() == 0
    pair[0].wait("--sshd", env={"PLATFORM_LAUNCH_SECRET": SECRET})
    pair[0].says("all 2 nodes wait")
    assert allowed(pair[1]) != first
    assert runs_on_both(pair, tmp_path)
    shown = pair[0].dist_launch(
        "run", script(tmp_path / "secret.sh", 'echo "has ${#PLATFORM_LAUNCH_SECRET}"')
    )
    assert shown.stdout.count(f"has {len(SECRET)}") == 2  # a job's own rendezvous is authenticated too
    assert not any(SECRET in node.text + node.info.read_text() for node in pair)


def test_a_node_without_the_secret_is_told_so_by_name(tmp_path: Path) -> None:
    at_once(partial(_lacks_the_secret, tmp_path / "0", 0), partial(_lacks_the_secret, tmp_path / "1", 1))


def _lacks_the_secret(folder: Path, holder: int) -> None:
    with lab.idle(2, folder) as (pair, _):
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        pair[holder].wait("--sshd", env={"PLATFORM_LAUNCH_SECRET_FILE": str(secret)})
        pair[1 - holder].wait("--sshd")
        assert pair[1].code() == 76
        lacking = (
            "node 1 (node1 (10.213.0.2)) has no" if holder == 0 else "node 0 (node0 (10.213.0.1)) has no"
        )
        assert f"{lacking} PLATFORM_LAUNCH_SECRET" in pair[1].text
        if holder == 0:
            pair[0].says(f"{lacking} PLATFORM_LAUNCH_SECRET")
        assert not (pair[1].state / "authorized_keys").exists()
