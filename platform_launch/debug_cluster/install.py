"""What a cluster leaves on a node while it waits, and how all of it is taken away again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from platform_launch.debug_cluster import keys
from platform_launch.debug_cluster.blocks import put_block, remove_block
from platform_launch.debug_cluster.cluster import Cluster, write_cluster
from platform_launch.debug_cluster.folder import Folder, write_private

HOSTS = Path("/etc/hosts")


def install(cluster: Cluster, own_sshd: bool, private_key: str) -> None:
    """Let rank 0 in; on rank 0 (``private_key`` is its own) also name the others. Raises OSError."""
    me = cluster.members[cluster.rank]
    folder = Folder(Path(me.folder))
    line = keys.authorized_line(cluster.members[0].public_key)
    if own_sshd:
        write_private(folder.authorized_keys, f"{line}\n")
    else:
        put_block(ssh_folder(me.ssh_user) / "authorized_keys", marker(folder), [line])
    if cluster.rank == 0:
        write_private(folder.known_hosts, keys.known_hosts(cluster))
        write_private(folder.ssh_config, keys.ssh_config(cluster, folder, Path(private_key)))
        put_block(ssh_folder(None) / "config", marker(folder), [keys.include_line(folder)], at_top=True)
        if os.access(HOSTS, os.W_OK):
            put_block(HOSTS, marker(folder), keys.hosts_lines(cluster), in_place=True)
    write_cluster(folder.cluster_file, cluster)


def uninstall(folder: Folder, ssh_user: str) -> list[str]:
    """Take away whatever a ``wait`` of this folder added; return what could not be. Also after a crash."""
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
            problems.append(f"{path}: {error.strerror}")
    with suppress(FileNotFoundError):
        folder.cluster_file.unlink()
    shutil.rmtree(folder.path, ignore_errors=True)
    return problems


def marker(folder: Folder) -> str:
    """Return what marks the blocks of one node's ``wait``: homes may be shared between nodes."""
    return f"dist-launch {socket.gethostname()} {folder.cluster_file}"


def ssh_folder(user: str | None) -> Path:
    """Return ~/.ssh of a user, None: of this process's.

    As OpenSSH, this asks the password database and not HOME.
    """
    entry = pwd.getpwnam(user) if user is not None else pwd.getpwuid(os.geteuid())
    return Path(entry.pw_dir) / ".ssh"
