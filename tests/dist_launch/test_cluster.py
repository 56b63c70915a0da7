"""What nodes tell each other, and what is not believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from platform_launch.dist_launch import cluster_keys
from platform_launch.dist_launch.cluster import (
    ClusterMember,
    WaitingCluster,
    read_cluster,
    write_cluster,
)
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.errors import InputError, UsageError

MEMBER = ClusterMember(
    rank=0,
    host="node0",
    address="10.0.0.1",
    ssh_port=2025,
    ssh_user="root",
    host_key="ssh-ed25519 AAAA",
    identity="ab",
    python="/usr/bin/python3",
    package="/opt/platform",
    folder="/tmp/cluster_info.json.d",
)
CLUSTER = WaitingCluster(0, "ab", "now", tuple(replace(MEMBER, rank=rank) for rank in range(4)))


def test_a_rank_that_is_not_in_the_cluster_is_named() -> None:
    with pytest.raises(UsageError, match=r"no node 4 in this cluster of 4: expected 0–3"):
        CLUSTER.chosen("2-5")
    assert [member.rank for member in CLUSTER.chosen("0,2-3")] == [0, 2, 3]
    assert CLUSTER.chosen("all") == CLUSTER.chosen(None) == CLUSTER.members


@pytest.mark.parametrize(
    "lie",
    [
        {"host": "a\nHost *"},
        {"ssh_user": "root -o ProxyCommand=x"},
        {"address": "10.0.0.1 evil"},
        {"host_key": "ssh-ed25519 AAAA\nssh-rsa BBBB"},
        {"public_key": 'ssh-rsa AAAA\ncommand="x" ssh-rsa BBBB'},
        {"ssh_port": 0},
        {"python": "python"},
        {"package": "/opt\n/x"},
    ],
)
def test_a_node_cannot_write_into_our_files_what_it_likes(lie: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        replace(MEMBER, **lie)  # type: ignore[arg-type]


def test_cluster_information_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "cluster_info.json"
    write_cluster(path, CLUSTER)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_cluster(path) == CLUSTER


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 99}', '{"version": 2, "members": [{"rank": 0}]}']
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster_info.json"
    path.write_text(text)
    with pytest.raises(InputError, match="was not written by this dist-launch"):
        read_cluster(path)


def test_no_file_means_that_no_cluster_waits(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cluster waits here"):
        read_cluster(tmp_path / "cluster_info.json")


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "info.d").symlink_to(elsewhere)
    with pytest.raises(InputError, match="symbolic link"):
        WaitFolder.beside(tmp_path / "info").create()


@pytest.mark.parametrize("name", ['a"b', "a%b", "a\nb", "a\\b"])
def test_a_path_that_ssh_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="SSH configurations"):
        WaitFolder.beside(tmp_path / name).create()


def test_rank_0s_key_may_run_commands_and_forward_nothing() -> None:
    assert cluster_keys.authorized_line("ssh-ed25519 AAAA").startswith("restrict,pty ssh-ed25519 AAAA")
