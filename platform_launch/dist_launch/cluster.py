"""The connected nodes: what each node knows about the others, and the file that holds it."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from platform_launch.dist_launch.folder import read_private, write_private
from platform_launch.errors import InputError, UsageError, shown
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.ranks import parse_ranks
from platform_launch.text import Phrase

VERSION = 2

# Values that are written to configuration files must not add a line or a word to them.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_KEY = re.compile(r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+")


@dataclass(frozen=True)
class ClusterMember(Message):
    """One node of a cluster, as it described itself to the others.

    ``host_key`` is the SSH server's key, ``public_key`` (node 0 only) the key that may log in to the others,
    both in OpenSSH's form ``ssh-ed25519 AAAA…``. ``python``, ``package`` and ``folder`` are the paths of the
    interpreter, of this package and of the state of ``wait`` on that node. Each ``wait`` has a new random
    ``identity``. Raises ValueError for values that no node can have.
    """

    most_bytes: ClassVar[int] = 16 * 1024

    rank: int
    host: str
    address: str
    ssh_port: int
    ssh_user: str
    host_key: str
    identity: str
    python: str
    package: str
    folder: str
    public_key: str = ""

    def __post_init__(self) -> None:
        words = (self.host, self.ssh_user)
        keys = (self.host_key, self.public_key or self.host_key)
        paths = (self.python, self.package, self.folder)
        if not (
            _is_address(self.address)
            and all(map(_WORD.fullmatch, words))
            and all(map(is_public, keys))
            and all(path.startswith("/") and path.isprintable() for path in paths)
            and self.rank >= 0
            and 1 <= self.ssh_port <= 65535
        ):
            raise ValueError(f"node {self.rank} presents itself in a form that cannot be used")

    @property
    def alias(self) -> str:
        """The name it has in SSH configurations and in output."""
        return f"rank-{self.rank}"

    @property
    def place(self) -> Phrase:
        """Its host and address, for messages."""
        return Phrase("{name} ({host}, {address})", name=self.alias, host=self.host, address=self.address)


@dataclass(frozen=True)
class WaitingCluster:
    """All nodes, by rank, as known to the node ``rank``.

    ``identity`` is that of node 0's ``wait``.
    """

    rank: int
    identity: str
    formed_at: str
    members: tuple[ClusterMember, ...]

    def to_json(self) -> str:
        """Return the content of CLUSTER_INFO_FILE."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> WaitingCluster:
        """Read :meth:`to_json`. Raises ValueError for anything else."""
        try:
            values = json.loads(text)
            if values.pop("version") != VERSION:
                raise ValueError("another version")
            members = tuple(ClusterMember(**member) for member in values.pop("members"))
            return cls(**values, members=members)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a cluster: {error}") from error

    def chosen(self, nodes: str | None) -> tuple[ClusterMember, ...]:
        """Return the members that ``--nodes`` selects: ``0,2-3``, ``rank-2``, ``all``; None selects all.

        Raises UsageError for a rank that is not in the cluster.
        """
        if nodes is None or nodes == "all":
            return self.members
        ranks = parse_ranks(nodes)
        known = {member.rank for member in self.members}
        strangers = [rank for rank in ranks if rank not in known]
        if strangers:
            raise UsageError(
                Phrase(
                    "{nodes}: no node {rank} in this cluster of {count}: expected 0–{last}",
                    nodes=shown(nodes),
                    rank=strangers[0],
                    count=len(self.members),
                    last=len(self.members) - 1,
                ),
                "dist-launch hosts lists the nodes",
            )
        return tuple(member for member in self.members if member.rank in ranks)


def is_public(text: str) -> bool:
    """Return whether a text is exactly the type and base64 of a public key."""
    return bool(_KEY.fullmatch(text))


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            return bool(socket.inet_pton(family, text))
    return False


def read_cluster(path: Path) -> WaitingCluster:
    """Read CLUSTER_INFO_FILE, which must belong to this user. Raises InputError."""
    try:
        return WaitingCluster.from_json(read_private(path))
    except FileNotFoundError as error:
        raise InputError(
            Phrase(
                (
                    "{path} (CLUSTER_INFO_FILE) does not exist: no cluster waits here, or some of "
                    "its nodes are not connected yet"
                ),
                path=path,
            ),
            "start dist-launch wait on every node, and check its output",
        ) from error
    except OSError as error:
        raise InputError(
            Phrase("{path} (CLUSTER_INFO_FILE) is not used: {problem}", path=path, problem=error.strerror),
            (
                "it must belong to the user who runs wait, and must not be a link; otherwise set "
                "another CLUSTER_INFO_FILE"
            ),
        ) from error
    except ValueError as error:
        raise InputError(
            Phrase(
                "{path} (CLUSTER_INFO_FILE) was not written by this dist-launch: {problem}",
                path=path,
                problem=error,
            ),
            "use the same version and the same CLUSTER_INFO_FILE for wait and this command",
        ) from error


def write_cluster(path: Path, cluster: WaitingCluster) -> None:
    """Write CLUSTER_INFO_FILE atomically, readable by its owner only. Raises OSError."""
    write_private(path, cluster.to_json())
