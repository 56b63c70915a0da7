"""The private folder of a ``wait``, beside CLUSTER_INFO_FILE, and files that only their owner may read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platform_launch import files
from platform_launch.errors import InputError, shown

_HINT = "look who made it; then remove it, or name another CLUSTER_INFO_FILE"


@dataclass(frozen=True)
class WaitFolder:
    """``CLUSTER_INFO_FILE.d``: keys, SSH configuration, the captured environment, what runs here."""

    path: Path

    @classmethod
    def beside(cls, cluster_file: Path) -> WaitFolder:
        """Return the folder that belongs to a cluster information file."""
        return cls(cluster_file.with_name(f"{cluster_file.name}.d"))

    @property
    def cluster_file(self) -> Path:
        """The file it lies beside."""
        return self.path.with_name(self.path.name.removesuffix(".d"))

    @property
    def wait_pid(self) -> Path:
        """Process id of the ``wait`` that owns the folder."""
        return self.path / "wait.pid"

    @property
    def environment(self) -> Path:
        """This node's variables: its platform's, as ``wait`` saw them, and the launcher's for NCCL."""
        return self.path / "environment.json"

    @property
    def key(self) -> Path:
        """The cluster's own private key, where the user gave none."""
        return self.path / "id_ed25519"

    @property
    def authorized_keys(self) -> Path:
        """Who may log in to the private sshd."""
        return self.path / "authorized_keys"

    @property
    def sshd_config(self) -> Path:
        """Configuration of the private sshd."""
        return self.path / "sshd_config"

    @property
    def sshd_key(self) -> Path:
        """Host key of the private sshd."""
        return self.path / "ssh_host_ed25519_key"

    @property
    def known_hosts(self) -> Path:
        """The host keys with which the nodes joined."""
        return self.path / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """The aliases rank-0, rank-1, …"""
        return self.path / "ssh_config"

    @property
    def socket(self) -> Path:
        """Where rank 0's broker listens."""
        return self.path / "broker"

    @property
    def jobs(self) -> Path:
        """One file for each job that runs on this node."""
        return self.path / "jobs"

    @property
    def copies(self) -> Path:
        """What ``run --copy`` brought."""
        return self.path / "copies"

    @property
    def trusted_key(self) -> Path:
        """The public key that may log in to this node, once it has been decided."""
        return self.path / "trusted_key"

    def check(self) -> None:
        """See that nobody else can have prepared what lies in the folder. Raises InputError."""
        if problem := files.private_problem(self.path):
            raise InputError(f"{self.path} is not used: {problem}", _HINT)

    def create(self) -> None:
        """Create the folder for its owner alone. Raises InputError when it belongs to somebody else."""
        if not str(self.path).isprintable() or any(sign in str(self.path) for sign in '"%\\'):
            raise InputError(
                f"CLUSTER_INFO_FILE={shown(str(self.cluster_file))} will stand in SSH configurations, which "
                "know no quotes, percent signs, backslashes or line ends in a path",
                "name another file",
            )
        files.private_folder(self.path, "it will hold keys", _HINT)
        try:
            self.jobs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be created: {error.strerror}") from error

    def write_environment(self, variables: Mapping[str, str]) -> None:
        """Keep the variables that jobs of this node start with. Raises OSError."""
        write_private(self.environment, json.dumps(dict(variables)))

    def read_environment(self) -> dict[str, str]:
        """Read :meth:`write_environment`. Raises OSError, ValueError."""
        values: dict[str, str] = json.loads(self.environment.read_text(encoding="utf-8"))
        return values

    def own(self) -> None:
        """Let this process be the ``wait`` that lives here. Raises OSError."""
        from platform_launch.hardware import running

        me = running.find(os.getpid())
        write_private(self.wait_pid, f"{os.getpid()} {me.started if me else 0}\n")

    def owner(self) -> int | None:
        """Return the process id of the ``wait`` that lives here, None when it is gone."""
        try:
            pid, started = map(int, self.wait_pid.read_text().split())
        except (OSError, ValueError):
            return None
        from platform_launch.hardware import running  # 15 ms that a command which only asks need not pay

        found = running.find(pid)
        return pid if found is not None and found.started == started else None


def write_private(path: Path, text: str) -> None:
    """Write a file whole or not at all, with mode 0600. Raises OSError."""
    files.write_whole(path, text, mode=files.PRIVATE)


def read_private(path: Path) -> str:
    """Read a file that this user alone can have written. Raises OSError, PermissionError for another's."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, encoding="utf-8") as file:
        if problem := files.file_problem(os.fstat(handle), files.OTHERS_MAY_CHANGE):
            raise PermissionError(1, problem, str(path))
        return file.read()
