"""What a cluster adds to a node while it waits, and how all of it is removed again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from platform_launch.dist_launch import cluster_keys
from platform_launch.dist_launch.cluster import WaitingCluster, write_cluster
from platform_launch.dist_launch.folder import WaitFolder, write_private
from platform_launch.dist_launch.marked_blocks import remove_block, write_block
from platform_launch.text import Phrase

HOSTS = Path("/etc/hosts")


def install(cluster: WaitingCluster, allowed: str, own_sshd: bool, private_key: str) -> None:
    """Let the holder of one key log in; on rank 0 (it has a ``private_key``), also add aliases.

    Raises OSError.
    """
    me = cluster.members[cluster.rank]
    folder = WaitFolder(Path(me.folder))
    line = cluster_keys.authorized_line(allowed)
    if own_sshd:
        write_private(folder.authorized_keys, f"{line}\n")
    else:
        write_block(ssh_folder(me.ssh_user) / "authorized_keys", marker(folder), [line])
    if cluster.rank == 0:
        write_private(folder.known_hosts, cluster_keys.known_hosts(cluster))
        write_private(folder.ssh_config, cluster_keys.ssh_config(cluster, folder, Path(private_key)))
        write_block(
            ssh_folder(None) / "config", marker(folder), [cluster_keys.include_line(folder)], at_top=True
        )
        if os.access(HOSTS, os.W_OK):
            write_block(HOSTS, marker(folder), cluster_keys.hosts_lines(cluster), in_place=True)
    write_cluster(folder.cluster_file, cluster)


def uninstall(folder: WaitFolder, ssh_user: str) -> list[str]:
    """Remove all that a ``wait`` of this folder added, also after a crash; return what could not be."""
    problems: list[str] = []
    wanted = [
        (ssh_folder(ssh_user) / "authorized_keys", False),
        (ssh_folder(None) / "config", False),
        (HOSTS, True),
    ]
    for path, in_place in wanted:
        try:
            if os.access(path, os.W_OK):
                remove_block(path, marker(folder), in_place=in_place)
        except OSError as error:
            problems.append(Phrase("{path}: {problem}", path=path, problem=error.strerror))
    with suppress(FileNotFoundError):
        folder.cluster_file.unlink()
    shutil.rmtree(folder.path, ignore_errors=True)
    return problems


def marker(folder: WaitFolder) -> str:
    """Return the marker of one node's blocks: nodes may share a home."""
    return f"dist-launch {socket.gethostname()} {folder.cluster_file}"


def ssh_folder(user: str | None) -> Path:
    """Return ~/.ssh of a user, None: of this process's.

    Like OpenSSH, this reads the password database and not HOME.
    """
    entry = pwd.getpwnam(user) if user is not None else pwd.getpwuid(os.geteuid())
    return Path(entry.pw_dir) / ".ssh"
