"""A private SSH server for one ``wait``, for images that run none. It needs no root and no files in /etc."""

from __future__ import annotations

import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from platform_launch.dist_launch.cluster_keys import make_pair
from platform_launch.dist_launch.folder import WaitFolder, write_private
from platform_launch.errors import InstallationError, NodesAbsentError
from platform_launch.hardware import ports
from platform_launch.text import Phrase

_LOOK_S = 2.0
_START_S = 10.0
# For a server that the image starts at the same time as ``wait``.
_BESIDE_S = 3.0


def answers(port: int, *, starting: bool) -> bool:
    """Return whether an SSH server listens here; ``starting``: it may be about to.

    Raises NodesAbsentError for something else on its port.
    """
    if starting:
        await_listening(port, _BESIDE_S)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_LOOK_S) as connection:
            connection.settimeout(_LOOK_S)
            greeting = connection.recv(256)  # read all of it: unread data would reset the connection
    except ConnectionRefusedError:
        return False
    except OSError as error:
        raise NodesAbsentError(
            Phrase("port {port} of this node (SSH_PORT) does not answer: {problem}", port=port, problem=error)
        ) from error
    if not greeting.startswith(b"SSH-"):
        raise NodesAbsentError(
            Phrase(
                ("the process that listens on port {port} of this node (SSH_PORT) is not an SSH server"),
                port=port,
            ),
            "set SSH_PORT to a free port on all nodes, and pass --sshd",
        )
    return True


def prepare(folder: WaitFolder, port: int, user: str) -> tuple[tuple[str, ...], str]:
    """Write host key and configuration; return the server's command line, and its public host key.

    Raises InstallationError without OpenSSH's server, OSError when the files cannot be written.
    """
    program = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/usr/local/sbin:/sbin")
    if program is None:
        raise InstallationError(
            "--sshd: this image has no sshd", "install openssh-server into the image of every node"
        )
    public = make_pair(folder.sshd_key)
    write_private(folder.authorized_keys, "")
    write_private(folder.sshd_config, configuration(folder, port, user))
    if os.geteuid() == 0:
        with suppress(OSError):  # needed for privilege separation; packages create it in their start scripts
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return (program, "-D", "-e", "-f", str(folder.sshd_config)), public


def configuration(folder: WaitFolder, port: int, user: str) -> str:
    """Return sshd_config(5): one user, one key file, no forwarding, connections that notice a cut.

    StrictModes would refuse a key file below /tmp. The folder is private to our user, which is what
    StrictModes is meant to ensure.
    """
    return f"""\
Port {port}
HostKey "{folder.sshd_key}"
AuthorizedKeysFile "{folder.authorized_keys}"
StrictModes no
PidFile none
UsePAM no
AllowUsers {user}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
DisableForwarding yes
PermitUserRC no
PrintMotd no
ClientAliveInterval 10
ClientAliveCountMax 3
MaxStartups 500:30:1000
MaxSessions 100
LogLevel ERROR
Subsystem sftp internal-sftp
"""


def await_listening(port: int, limit_s: float = _START_S) -> bool:
    """Wait until the server that was just started listens; return whether it does."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if ports.probe(port).taken:
            return True
        time.sleep(0.05)
    return False
