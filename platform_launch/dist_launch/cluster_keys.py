"""SSH keys of a cluster, and the files in which clients and servers expect them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from platform_launch.dist_launch.cluster import WaitingCluster, is_public
from platform_launch.dist_launch.folder import WaitFolder, read_private, write_private
from platform_launch.errors import InputError, InstallationError, NodesAbsentError
from platform_launch.extras import install_extra
from platform_launch.text import Phrase

_HOST_KEY_LIMIT_S = 10.0


@dataclass(frozen=True)
class ClusterKey:
    """Rank 0's key: ``private`` stays on rank 0, ``public`` is sent to the others."""

    private: Path
    public: str


def require_asyncssh() -> None:
    """Raise InstallationError if the SSH library is missing."""
    from importlib.util import find_spec

    if find_spec("asyncssh") is None:
        raise InstallationError(
            "this Python has no asyncssh, which dist-launch needs",
            install_extra("dist-launch"),
        )


def key_pair(folder: WaitFolder, private: Path | None, public: Path | None) -> ClusterKey:
    """Return the user's key pair, or create one for this cluster. Raises InputError."""
    if private is None and public is not None:
        if public.suffix != ".pub":
            raise InputError(
                Phrase(
                    "SSH_PUBLIC_KEY={public} is set and SSH_KEY is not: expected a name that ends in .pub",
                    public=public,
                ),
                "set SSH_KEY to the private key that belongs to it",
            )
        private = public.with_suffix("")
    if private is None:
        if folder.key.exists():  # left by a ``wait`` that was killed; the other nodes may already know it
            return ClusterKey(folder.key, public_of(folder.key))
        return ClusterKey(folder.key, make_pair(folder.key))
    beside = Path(f"{private}.pub")
    try:
        if not private.is_file():
            raise InputError(
                Phrase("{private} (SSH_KEY) is not there", private=private),
                "correct SSH_KEY, or unset it for a new pair",
            )
        if public is not None or beside.is_file():
            return ClusterKey(private, two_words((public or beside).read_bytes()))
        return ClusterKey(private, public_of(private))
    except (OSError, ValueError) as error:  # asyncssh's errors about keys are ValueErrors
        raise InputError(
            Phrase(
                "the key pair {private} (SSH_KEY) cannot be read: {problem}", private=private, problem=error
            )
        ) from error


def make_pair(private: Path) -> str:
    """Write a new private key and return its public one.

    Uses the cryptography library directly, because a waiting node with its own sshd does not need asyncssh
    otherwise.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    made = Ed25519PrivateKey.generate()
    written = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_private(private, written.decode())
    return made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def public_of(private: Path) -> str:
    """Return the public key of a private one."""
    import asyncssh

    return two_words(asyncssh.read_private_key(private).export_public_key("openssh"))


def left_behind(folder: WaitFolder) -> str:
    """Return the private key that a killed ``wait`` of rank 0 left in our folder, or an empty text."""
    try:
        text = read_private(folder.key)
    except (OSError, ValueError):
        return ""
    import asyncssh

    try:
        asyncssh.import_private_key(text)
    except ValueError:
        return ""
    return text


def read_public(path: Path) -> str:
    """Return the first key in a file that SSH_PUBLIC_KEY names on a node. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(
            Phrase(
                "SSH_PUBLIC_KEY={path} cannot be read: {problem}; only the key that it names may "
                "log in to this node",
                path=path,
                problem=error.strerror,
            ),
            "correct it, or unset it to let in the key that rank 0 brings first",
        ) from error
    for line in lines:
        if is_public(key := two_words(line.encode())):
            return key
    raise InputError(
        Phrase(
            ("SSH_PUBLIC_KEY={path} contains no public key: expected a line like ssh-ed25519 AAAA…"),
            path=path,
        ),
        "name the .pub file of the key that rank 0 uses (SSH_KEY)",
    )


async def host_key(address: str, port: int) -> str:
    """Query this node's own SSH server for its host key. Raises NodesAbsentError."""
    import asyncio

    import asyncssh

    try:
        key = await asyncio.wait_for(
            asyncssh.get_server_host_key(address, port, config=None), _HOST_KEY_LIMIT_S
        )
    except (OSError, asyncssh.Error, TimeoutError, asyncio.TimeoutError) as error:
        raise NodesAbsentError(
            Phrase(
                "the SSH server on port {port} of this node offers no host key: {problem}",
                port=port,
                problem=str(error) or Phrase("no answer"),
            )
        ) from error
    assert key is not None
    return two_words(key.export_public_key("openssh"))


def authorized_line(public: str) -> str:
    """Return rank 0's line for authorized_keys: it may run commands on a terminal, and forward nothing."""
    return f"restrict,pty {public} dist-launch"


def known_hosts(cluster: WaitingCluster) -> str:
    """Return the host keys of the nodes at the time they joined, under their aliases."""
    return "".join(f"{member.alias} {member.host_key}\n" for member in cluster.members)


def ssh_config(cluster: WaitingCluster, folder: WaitFolder, private: Path) -> str:
    """Return the OpenSSH configuration of the aliases."""
    return "".join(
        f"Host {member.alias}\n"
        f"  HostName {member.address}\n"
        f"  Port {member.ssh_port}\n"
        f"  User {member.ssh_user}\n"
        f"  HostKeyAlias {member.alias}\n"
        f"  UserKnownHostsFile {_quoted(folder.known_hosts)}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        f"  IdentityFile {_quoted(private)}\n"
        "  IdentitiesOnly yes\n"
        for member in cluster.members
    )


def include_line(folder: WaitFolder) -> str:
    """Return the line that makes a user's configuration read the aliases."""
    return f"Include {_quoted(folder.ssh_config)}"


def hosts_lines(cluster: WaitingCluster) -> Sequence[str]:
    """Return the aliases for /etc/hosts."""
    return [f"{member.address} {member.alias}" for member in cluster.members]


def two_words(line: bytes) -> str:
    """Return kind and key without the comment."""
    return " ".join(line.decode(errors="replace").split()[:2])


def _quoted(path: Path) -> str:
    """Quote a path as ssh_config(5) reads it: percent signs stand for tokens."""
    return '"' + str(path).replace("%", "%%") + '"'
